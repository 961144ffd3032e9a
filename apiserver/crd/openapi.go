// SPDX-License-Identifier: Apache-2.0

package crd

import (
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// openAPI is the version's schema for OpenAPI: see openapi.Model.
func (v *version) openAPI(v2 bool) (schema *spec.Schema, open bool) {
	props, err := v.props()
	if err != nil || props == nil {
		return nil, false
	}
	// Defaults are published as written, so this starts from the definition's own schema.
	str, err := structural.NewStructural(props)
	if err != nil || len(structural.ValidateStructural(nil, str)) > 0 {
		return nil, false
	}
	str = str.Unfold()
	open = str.XPreserveUnknownFields || v.preserve
	if v2 {
		str = openapiv2.ToStructuralOpenAPIV2(str)
	}
	schema = str.ToKubeOpenAPI()
	if len(v.selectable) > 0 {
		paths := make([]any, len(v.selectable))
		for i, f := range v.selectable {
			paths[i] = map[string]any{"fieldPath": f.name}
		}
		schema.AddExtension("x-kubernetes-selectable-fields", paths)
	}
	return schema, open
}
