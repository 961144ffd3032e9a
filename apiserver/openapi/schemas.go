// SPDX-License-Identifier: Apache-2.0

// Package openapi publishes the server's resources as OpenAPI v2 and v3, so that
// kubectl can explain and validate them. It reads Go types (their JSON tags, patch
// tags and SwaggerDoc texts), the merge schemas of api/apply and the schemas of
// custom resources; the API server hands it the list of resources and mounts its handler. It stores nothing.
package openapi

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"

	"keelson/api/apply"
)

const definitions = "#/definitions/"

// schemas builds definitions of Go types, each once.
type schemas struct {
	defs spec.Definitions
}

// modelName is how the type is called in OpenAPI: "io.k8s.api.core.v1.Pod". Types without a published name get one of their package path.
func modelName(t reflect.Type) string {
	if n, ok := reflect.TypeAssert[interface{ OpenAPIModelName() string }](reflect.New(t).Elem()); ok {
		return n.OpenAPIModelName()
	}
	path := strings.Split(t.PkgPath(), "/")
	host := strings.Split(path[0], ".")
	slices.Reverse(host)
	return strings.Join(append(host, append(path[1:], t.Name())...), ".")
}

// ref returns a reference to t's definition, making the definition first.
func (s *schemas) ref(t reflect.Type) spec.Schema {
	name := modelName(t)
	if _, ok := s.defs[name]; !ok {
		s.defs[name] = spec.Schema{} // breaks cycles: the type may refer to itself
		s.defs[name] = s.object(t, name)
	}
	return *spec.RefSchema(definitions + name)
}

// tag marks the definition of a root kind with its group, version and kind.
func (s *schemas) tag(t reflect.Type, gvk schema.GroupVersionKind) {
	s.ref(t)
	name := modelName(t)
	d := s.defs[name]
	entry := map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
	have, _ := d.Extensions["x-kubernetes-group-version-kind"].([]any)
	for _, h := range have {
		if reflect.DeepEqual(h, any(entry)) {
			return
		}
	}
	d.AddExtension("x-kubernetes-group-version-kind", append(have, entry))
	s.defs[name] = d
}

func (s *schemas) object(t reflect.Type, name string) spec.Schema {
	zero := reflect.New(t)
	docs := map[string]string{}
	if d, ok := reflect.TypeAssert[interface{ SwaggerDoc() map[string]string }](zero.Elem()); ok {
		docs = d.SwaggerDoc()
	}
	if special, ok := scalar(zero, docs[""]); ok {
		return special
	}
	out := spec.Schema{SchemaProps: spec.SchemaProps{Description: docs[""], Type: []string{"object"}}}
	if t.Kind() != reflect.Struct {
		return s.of(t)
	}
	s.fields(&out, t, docs, typed(name))
	slices.Sort(out.Required)
	return out
}

// typed finds the merge rules of a type, nil when there are none.
func typed(name string) *smd.Map {
	def, ok := apply.Definition(name)
	if !ok {
		return nil
	}
	return def.Map
}

func (s *schemas) fields(out *spec.Schema, t reflect.Type, docs map[string]string, rules *smd.Map) {
	for f := range t.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if f.Anonymous && name == "" || strings.Contains(opts, "inline") {
			s.inline(out, f.Type, rules)
			continue
		}
		if name == "" {
			continue
		}
		p := s.of(f.Type)
		p.Description = docs[name]
		if v := f.Tag.Get("patchStrategy"); v != "" {
			p.AddExtension("x-kubernetes-patch-strategy", v)
		}
		if v := f.Tag.Get("patchMergeKey"); v != "" {
			p.AddExtension("x-kubernetes-patch-merge-key", v)
		}
		s.listType(&p, rules, name)
		if out.Properties == nil {
			out.Properties = map[string]spec.Schema{}
		}
		out.Properties[name] = p
		if !strings.Contains(opts, "omitempty") && !strings.Contains(opts, "omitzero") && f.Type.Kind() != reflect.Pointer && !optional[name] {
			out.Required = append(out.Required, name)
		}
	}
}

// optional are fields without omitempty that the API documents as optional all the same.
var optional = map[string]bool{"metadata": true, "status": true, "spec": true}

func (s *schemas) inline(out *spec.Schema, t reflect.Type, rules *smd.Map) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	docs := map[string]string{}
	if d, ok := reflect.TypeAssert[interface{ SwaggerDoc() map[string]string }](reflect.New(t).Elem()); ok {
		docs = d.SwaggerDoc()
	}
	s.fields(out, t, docs, rules)
}

// listType adds x-kubernetes-list-type and its keys, or x-kubernetes-map-type, from the merge rules.
func (s *schemas) listType(p *spec.Schema, rules *smd.Map, name string) {
	if rules == nil {
		return
	}
	f, ok := rules.FindField(name)
	if !ok {
		return
	}
	if f.Type.Inlined.List != nil {
		switch l := f.Type.Inlined.List; {
		case l.ElementRelationship == smd.Atomic:
			p.AddExtension("x-kubernetes-list-type", "atomic")
		case len(l.Keys) > 0:
			keys := make([]any, len(l.Keys))
			for i, k := range l.Keys {
				keys[i] = k
			}
			p.AddExtension("x-kubernetes-list-type", "map")
			p.AddExtension("x-kubernetes-list-map-keys", keys)
		default:
			p.AddExtension("x-kubernetes-list-type", "set")
		}
	}
	if m := f.Type.Inlined.Map; m != nil && m.ElementRelationship == smd.Atomic {
		p.AddExtension("x-kubernetes-map-type", "atomic")
	}
}

// of is the schema of a field's type: inline for plain types, a reference for structs.
func (s *schemas) of(t reflect.Type) spec.Schema {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() != "" && t.Kind() != reflect.Interface && (t.Kind() == reflect.Struct || hasScalar(t)) {
		return s.ref(t)
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return plain("string", "byte")
		}
		item := s.of(t.Elem())
		return *spec.ArrayProperty(&item)
	case reflect.Map:
		value := s.of(t.Elem())
		return *spec.MapProperty(&value)
	case reflect.Interface:
		return plain("object", "")
	default:
		return basic(t.Kind())
	}
}

func basic(k reflect.Kind) spec.Schema {
	switch k {
	case reflect.Bool:
		return plain("boolean", "")
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64:
		return plain("integer", "int64")
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return plain("integer", "int32")
	case reflect.Float32, reflect.Float64:
		return plain("number", "double")
	default:
		return plain("string", "")
	}
}

func plain(typ, format string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{typ}, Format: format}}
}

type openAPIType interface {
	OpenAPISchemaType() []string
	OpenAPISchemaFormat() string
}

// scalar is the schema of a struct that is a plain value on the wire (Time, Quantity, IntOrString...).
func scalar(zero reflect.Value, doc string) (spec.Schema, bool) {
	if o, ok := reflect.TypeAssert[openAPIType](zero.Elem()); ok {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: doc, Type: o.OpenAPISchemaType(), Format: o.OpenAPISchemaFormat()}}, true
	}
	if _, ok := reflect.TypeAssert[encoding.TextMarshaler](zero); ok {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: doc, Type: []string{"string"}}}, true
	}
	return spec.Schema{}, false
}

func hasScalar(t reflect.Type) bool {
	_, ok := reflect.TypeAssert[openAPIType](reflect.New(t).Elem())
	return ok
}

// check makes sure that every reference leads somewhere; it is a programming error when not.
func (s *schemas) check() error {
	for _, name := range slices.Sorted(maps.Keys(s.defs)) {
		for field, p := range s.defs[name].Properties {
			target := p.Ref.String()
			if p.Items != nil && p.Items.Schema != nil {
				target = p.Items.Schema.Ref.String()
			}
			if target == "" {
				continue
			}
			if _, ok := s.defs[strings.TrimPrefix(target, definitions)]; !ok {
				return fmt.Errorf("openapi: %s.%s refers to %s, which is not defined", name, field, target)
			}
		}
	}
	return nil
}
