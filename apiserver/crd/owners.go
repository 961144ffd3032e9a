// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"keelson/api/apply"
)

// fieldManagerInput returns the input of the field manager for v's subresource sub.
func (vs *versions) fieldManagerInput(v *version, sub string) func() (*apply.Custom, error) {
	return func() (*apply.Custom, error) {
		types, err := vs.types()
		if err != nil {
			return nil, err
		}
		custom := &apply.Custom{Types: types, Reset: map[string][][]string{}}
		switch sub {
		case "":
			if v.status {
				custom.Reset[v.gvk.GroupVersion().String()] = [][]string{{"status"}}
			}
		case "status":
			for _, other := range vs.byName {
				if other.status {
					custom.Reset[other.gvk.GroupVersion().String()] = [][]string{{"metadata"}, {"spec"}}
				}
			}
		}
		custom.Convert = func(
			u *unstructured.Unstructured, to schema.GroupVersion,
		) (*unstructured.Unstructured, error) {
			return vs.convertOne(context.Background(), u, vs.byName[to.Version])
		}
		return custom, nil
	}
}

// mergeTypes are the merge schemas of all versions, by apiVersion.
func (vs *versions) mergeTypes() (map[string]typed.ParseableType, error) {
	models := map[string]*spec.Schema{}
	for _, v := range vs.byName {
		model, err := v.mergeModel()
		if err != nil {
			return nil, err
		}
		models[v.gvk.GroupVersion().String()] = model
	}
	return apply.CustomTypes(models, vs.storage.preserve)
}

// mergeModel is the version's schema with the common fields of objects.
func (v *version) mergeModel() (*spec.Schema, error) {
	structure, err := v.structure()
	if err != nil {
		return nil, err
	}
	s := structure.ToKubeOpenAPI()
	if s == nil {
		s = &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
		s.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	}
	addObjectMeta(s, true)
	return s, nil
}

// addObjectMeta adds apiVersion, kind and metadata to s if it is an object, and to embedded objects.
func addObjectMeta(s *spec.Schema, root bool) {
	if is, _ := s.Extensions["x-kubernetes-embedded-resource"].(bool); is || root {
		if s.Properties == nil {
			s.Properties = map[string]spec.Schema{}
		}
		s.Properties["apiVersion"] = *spec.StringProperty()
		s.Properties["kind"] = *spec.StringProperty()
		s.Properties["metadata"] = spec.Schema{SchemaProps: spec.SchemaProps{
			AllOf: []spec.Schema{*spec.RefSchema("#/components/schemas/" + apply.MetaName)},
		}}
	}
	for name, p := range s.Properties {
		if root && name == "metadata" {
			continue
		}
		addObjectMeta(&p, false)
		s.Properties[name] = p
	}
	if s.Items != nil && s.Items.Schema != nil {
		addObjectMeta(s.Items.Schema, false)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		addObjectMeta(s.AdditionalProperties.Schema, false)
	}
}
