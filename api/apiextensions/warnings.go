// SPDX-License-Identifier: Apache-2.0

package apiextensions

import (
	"fmt"
	"slices"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// formatsOf is the release whose string formats count as known.
var formatsOf = version.MajorMinor(1, 37)

// warnings reports what a definition's schemas ask for in vain; on an update only of what is new.
func warnings(crd, old *v1.CustomResourceDefinition) []string {
	in, err := toInternal(crd)
	if err != nil {
		return nil // validation has said so
	}
	formats, sets := vain(&in.Spec)
	if old == nil {
		return append(formats, sets...)
	}
	before, err := toInternal(old)
	if err != nil {
		return nil
	}
	oldFormats, oldSets := vain(&before.Spec)
	known := slices.Concat(oldFormats, oldSets)
	return slices.DeleteFunc(append(formats, sets...), func(w string) bool { return slices.Contains(known, w) })
}

// vain lists formats that no one knows, in the order of the schemas, and sets whose items cannot be compared, sorted.
func vain(s *internal.CustomResourceDefinitionSpec) (formats, sets []string) {
	visit := func(p *internal.JSONSchemaProps) bool {
		if p.Format != "" {
			one := &spec.Schema{SchemaProps: spec.SchemaProps{Format: p.Format, Type: []string{p.Type}}}
			for _, f := range schemavalidation.GetUnrecognizedFormats(one, formatsOf) {
				formats = append(formats, fmt.Sprintf("unrecognized format %q", f))
			}
		}
		if p.XListType != nil && *p.XListType == "set" && p.Items != nil && p.Items.Schema != nil {
			if t := p.Items.Schema.Type; t == "object" || t == "array" {
				sets = append(sets,
					fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side "+
						"apply or CEL validation rules", t))
			}
		}
		return false // look at all
	}
	if s.Validation != nil && s.Validation.OpenAPIV3Schema != nil {
		validation.SchemaHas(s.Validation.OpenAPIV3Schema, visit)
	}
	for i := range s.Versions {
		if v := s.Versions[i].Schema; v != nil && v.OpenAPIV3Schema != nil {
			validation.SchemaHas(v.OpenAPIV3Schema, visit)
		}
	}
	slices.Sort(sets)
	return formats, slices.Compact(sets)
}
