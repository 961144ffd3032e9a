// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Model describes a kind without a Go type.
type Model struct {
	// Name and ListName are the names of the definitions, made by ModelName.
	Name, ListName string
	ListKind       string
	// Schema is the kind's schema without the common fields of objects, nil if unknown. open means that objects may
	// have further fields; v2 must then describe none. The caller may modify the schema.
	Schema func(v2 bool) (s *spec.Schema, open bool)
	// Sum changes with everything that the documents say about the resource and its subresources.
	Sum string
}

// ModelName is the definition name of a custom kind: "com.example.v1.Widget".
func ModelName(gvk schema.GroupVersionKind) string {
	parts := strings.Split(gvk.Group, ".")
	slices.Reverse(parts)
	return strings.Join(append(parts, gvk.Version, gvk.Kind), ".")
}

var (
	typeDocs    = metav1.TypeMeta{}.SwaggerDoc()
	partialDocs = metav1.PartialObjectMetadata{}.SwaggerDoc()
	listDocs    = metav1.PartialObjectMetadataList{}.SwaggerDoc()
)

// custom defines res's kind and its list.
func (s *schemas) custom(res Resource, v2 bool) {
	model := res.Model
	meta := s.ref(reflect.TypeFor[metav1.ObjectMeta]())
	listMeta := s.ref(reflect.TypeFor[metav1.ListMeta]())
	one, open := model.Schema(v2)
	switch {
	case one == nil || v2 && open:
		// With properties, kubectl would reject all other fields.
		one = spec.MapProperty(nil)
		one.AdditionalProperties = nil
	default:
		one.SetProperty("metadata", *meta.WithDescription(partialDocs["metadata"]))
		withType(one)
		embedded(one, meta, v2)
	}
	one.AddExtension("x-kubernetes-group-version-kind", []any{gvkOf(res.Kind, res.Kind.Kind)})
	s.defs[model.Name] = *one
	list := new(spec.Schema).Typed("object", "").WithDescription(
		fmt.Sprintf("%s is a list of %s", model.ListKind, res.Kind.Kind)).WithRequired("items")
	list.SetProperty("items", *spec.ArrayProperty(spec.RefSchema(definitions + model.Name)).WithDescription(fmt.Sprintf(
		"List of %s. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
		res.GVR.Resource)))
	list.SetProperty("metadata", *listMeta.WithDescription(listDocs["metadata"]))
	withType(list)
	list.AddExtension("x-kubernetes-group-version-kind", []any{gvkOf(res.Kind, model.ListKind)})
	s.defs[model.ListName] = *list
}

func gvkOf(gvk schema.GroupVersionKind, kind string) map[string]any {
	return map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": kind}
}

func withType(s *spec.Schema) {
	for _, name := range []string{"apiVersion", "kind"} {
		s.SetProperty(name, *spec.StringProperty().WithDescription(typeDocs[name]))
	}
}

// embedded adds the common fields of objects to embedded objects.
func embedded(s *spec.Schema, meta spec.Schema, v2 bool) {
	if s == nil {
		return
	}
	for name, p := range s.Properties {
		if p.Ref.String() == "" {
			embedded(&p, meta, v2)
			s.Properties[name] = p
		}
	}
	if s.Items != nil {
		embedded(s.Items.Schema, meta, v2)
	}
	if s.AdditionalProperties != nil {
		embedded(s.AdditionalProperties.Schema, meta, v2)
	}
	if open, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); open && v2 {
		return // as for the root
	}
	if is, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !is {
		return
	}
	withType(s)
	s.SetProperty("metadata", *meta.WithDescription(partialDocs["metadata"]))
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}
