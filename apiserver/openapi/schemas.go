// SPDX-License-Identifier: Apache-2.0

// Package openapi publishes the server's resources as OpenAPI v2 and v3, so that kubectl can explain and validate them.
// It reads Go types (JSON tags, patch tags, SwaggerDoc texts), the facts that are only in their sources (facts.txt) and
// the schemas of custom resources. The API server passes it the resources and mounts its handler. It never reads stored
// objects.
package openapi

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"keelson/api/scheme"
)

const definitions = "#/definitions/"

// schemas builds the definitions of Go types, each once.
type schemas struct {
	defs         spec.Definitions
	v2           bool
	groupVersion schema.GroupVersion // the group version of a v3 document
	err          error               // the first error
}

// modelName is the OpenAPI name of a type: "io.k8s.api.core.v1.Pod". Types without a published name get one from their
// package path.
func modelName(t reflect.Type) string {
	if n, ok := reflect.TypeAssert[interface{ OpenAPIModelName() string }](reflect.New(t).Elem()); ok {
		return n.OpenAPIModelName()
	}
	path := strings.Split(t.PkgPath(), "/")
	host := strings.Split(path[0], ".")
	slices.Reverse(host)
	return strings.Join(append(host, append(path[1:], t.Name())...), ".")
}

// ref returns a reference to t's definition, which it builds first.
func (s *schemas) ref(t reflect.Type) spec.Schema {
	name := modelName(t)
	if _, ok := s.defs[name]; !ok {
		s.defs[name] = spec.Schema{} // placeholder: the type may refer to itself
		s.defs[name] = s.object(t)
	}
	return *spec.RefSchema(definitions + name)
}

// kinds adds the group, version and kind to the definition of a root kind. Types of every group version get those of
// core and of the document's group version; in a document of all, all of them.
func (s *schemas) kinds(d *spec.Schema, t reflect.Type) {
	obj, ok := reflect.TypeAssert[runtime.Object](reflect.New(t))
	if !ok {
		return
	}
	known, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return // in no group version
	}
	known = slices.SortedFunc(slices.Values(known), byName) // a copy: the scheme returns its own slice
	var kinds []any
	for _, gvk := range known {
		inside := gvk.GroupVersion() == s.groupVersion || gvk.GroupVersion() == schema.GroupVersion{Version: "v1"}
		if gvk.Version != runtime.APIVersionInternal && (s.v2 || len(known) == 1 || inside) {
			kinds = append(kinds, gvkOf(gvk, gvk.Kind))
		}
	}
	d.AddExtension("x-kubernetes-group-version-kind", kinds)
}

func byName(a, b schema.GroupVersionKind) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version),
		strings.Compare(a.Kind, b.Kind))
}

func (s *schemas) object(typ reflect.Type) spec.Schema {
	fact := s.fact(typ)
	docs := docsOf(typ)
	text := docs[""]
	if fact.Text != nil {
		text = *fact.Text
	}
	if special, ok := scalar(reflect.New(typ), text, s.v2); ok {
		return special
	}
	if typ.Kind() != reflect.Struct {
		return s.schemaOf(typ)
	}
	out := spec.Schema{SchemaProps: spec.SchemaProps{Description: text, Type: []string{"object"}}}
	addExtensions(&out, fact.Extensions)
	s.kinds(&out, typ)
	s.fields(&out, typ, docs, fact)
	return out
}

// fact returns the facts about t.
func (s *schemas) fact(t reflect.Type) fact {
	f, err := factOf(t)
	if err != nil && s.err == nil {
		s.err = err
	}
	return f
}

func docsOf(t reflect.Type) map[string]string {
	if d, ok := reflect.TypeAssert[interface{ SwaggerDoc() map[string]string }](reflect.New(t).Elem()); ok {
		return d.SwaggerDoc()
	}
	return nil
}

func addExtensions(s *spec.Schema, extensions map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		s.AddExtension(name, extensions[name])
	}
}

// named returns a field's JSON name, "" if it has none; inline means that the fields of its type are embedded.
func named(f reflect.StructField) (name string, omitEmpty, inline bool) {
	name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" || !f.IsExported() {
		return "", false, false
	}
	options := strings.Split(opts, ",")
	return name, slices.Contains(options, "omitempty"), f.Anonymous && name == "" || slices.Contains(options, "inline")
}

func (s *schemas) fields(out *spec.Schema, t reflect.Type, docs map[string]string, facts fact) {
	for structField := range t.Fields() {
		name, omitEmpty, inline := named(structField)
		if inline {
			in := structField.Type
			if in.Kind() == reflect.Pointer {
				in = in.Elem()
			}
			s.fields(out, in, docsOf(in), s.fact(in))
			continue
		}
		if name == "" {
			continue
		}
		known := facts.Fields[name]
		text := docs[name]
		if known.Text != nil {
			text = *known.Text
		}
		p := s.schemaOf(structField.Type)
		p.Description = strings.TrimSpace(text + s.enumDescriptions(structField.Type))
		if !s.v2 {
			p.Default = known.Default
			if p.Default == nil {
				p.Default = zero(structField.Type, omitEmpty)
			}
		}
		if v := structField.Tag.Get("patchStrategy"); v != "" {
			p.AddExtension("x-kubernetes-patch-strategy", v)
		}
		if v := structField.Tag.Get("patchMergeKey"); v != "" {
			p.AddExtension("x-kubernetes-patch-merge-key", v)
		}
		addExtensions(&p, known.Extensions)
		if out.Properties == nil {
			out.Properties = map[string]spec.Schema{}
		}
		out.Properties[name] = p
		if known.Required != nil && *known.Required || known.Required == nil && !omitEmpty {
			out.Required = append(out.Required, name)
		}
	}
}

// enumDescriptions lists the meanings of an enum's values, for the end of the description.
func (s *schemas) enumDescriptions(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.String {
		return ""
	}
	var lines []string
	for value, meaning := range s.fact(t).Enum {
		lines = append(lines, strings.TrimRight(fmt.Sprintf("\n - `%q` %s", value, meaning), " "))
	}
	if len(lines) == 0 {
		return ""
	}
	slices.Sort(lines)
	return "\n\nPossible enum values:" + strings.Join(lines, "")
}

// zero is the implicit default of a field: its zero value, if objects with and without the field decode to the same.
// Types with their own JSON decoding, and nil, have none.
func zero(typ reflect.Type, omitEmpty bool) any {
	if reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	switch typ.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Array, reflect.Interface:
		return nil
	case reflect.Struct:
		if typ.NumField() == 1 && typ.Field(0).Anonymous {
			return zero(typ.Field(0).Type, omitEmpty)
		}
		return map[string]any{}
	default:
		if omitEmpty {
			return nil
		}
		return reflect.Zero(typ).Interface()
	}
}

// schemaOf is the schema of a field's type: inline for plain types, a reference for structs.
func (s *schemas) schemaOf(typ reflect.Type) spec.Schema {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.PkgPath() != "" && typ.Kind() != reflect.Interface && (typ.Kind() == reflect.Struct || hasScalar(typ)) {
		return s.ref(typ)
	}
	switch typ.Kind() {
	case reflect.Slice, reflect.Array:
		if typ.Elem().Kind() == reflect.Uint8 {
			return plain("string", "byte")
		}
		item := s.schemaOf(typ.Elem())
		return *spec.ArrayProperty(&item)
	case reflect.Map:
		value := s.schemaOf(typ.Elem())
		return *spec.MapProperty(&value)
	case reflect.Interface:
		return spec.Schema{}
	default:
		p := basic(typ.Kind())
		if typ.Kind() == reflect.String && typ.PkgPath() != "" {
			for _, value := range slices.Sorted(maps.Keys(s.fact(typ).Enum)) {
				p.Enum = append(p.Enum, value)
			}
		}
		return p
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

// scalar is the schema of a struct that is a scalar on the wire (Time, Quantity, IntOrString...).
func scalar(zero reflect.Value, doc string, v2 bool) (spec.Schema, bool) {
	out := spec.Schema{SchemaProps: spec.SchemaProps{Description: doc}}
	if o, ok := reflect.TypeAssert[openAPIType](zero.Elem()); ok {
		out.Format = o.OpenAPISchemaFormat()
		if several, ok := reflect.TypeAssert[interface{ OpenAPIV3OneOfTypes() []string }](zero.Elem()); ok && !v2 {
			out.OneOf = common.GenerateOpenAPIV3OneOfSchema(several.OpenAPIV3OneOfTypes())
			return out, true
		}
		out.Type = o.OpenAPISchemaType()
		return out, true
	}
	if _, ok := reflect.TypeAssert[encoding.TextMarshaler](zero); ok {
		out.Type = []string{"string"}
		return out, true
	}
	return out, false
}

func hasScalar(t reflect.Type) bool {
	_, ok := reflect.TypeAssert[openAPIType](reflect.New(t).Elem())
	return ok
}

// check verifies that every reference has a definition; a missing one is a programming error.
func (s *schemas) check() error {
	if s.err != nil {
		return s.err
	}
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
