// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestRulesEndWithTheRequest: a validation rule over a long list stops when the request's time is up.
func TestRulesEndWithTheRequest(t *testing.T) {
	crd := &v1.CustomResourceDefinition{}
	if err := yaml.Unmarshal([]byte(definition), crd); err != nil {
		t.Fatal(err)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	spec.XValidations = v1.ValidationRules{{Rule: "self.numbers.all(n, n < 5000)", Message: "too large"}}
	spec.Properties["numbers"] = v1.JSONSchemaProps{
		Type:  "array",
		Items: &v1.JSONSchemaPropsOrArray{Schema: &v1.JSONSchemaProps{Type: "integer"}},
	}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	version, err := newVersion(crd, &crd.Spec.Versions[0])
	if err != nil {
		t.Fatal(err)
	}
	var numbers strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&numbers, "%d,", i)
	}
	doc := `{"apiVersion":"example.com/v1","kind":"Ship","metadata":{"name":"a"},"spec":{"flag":"red","numbers":[` +
		numbers.String() + `0]}}`
	obj, _, err := version.read([]byte(doc), true)
	if err != nil {
		t.Fatal(err)
	}
	k := version.kind()
	if errs := k.Rules(t.Context(), "", obj, nil, nil); len(errs) > 0 {
		t.Errorf("with time enough: %v", errs)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if errs := k.Rules(ended, "", obj, nil, nil); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(),
		"interrupted") {
		t.Errorf("when the time is up: got %v, want the evaluation interrupted", errs)
	}
}

// TestRulesRefuseDearQuantities: an object's text that quantity() would take seconds for fails the rule.
func TestRulesRefuseDearQuantities(t *testing.T) {
	crd := &v1.CustomResourceDefinition{}
	if err := yaml.Unmarshal([]byte(definition), crd); err != nil {
		t.Fatal(err)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	spec.XValidations = v1.ValidationRules{{
		Rule:              `quantity(self.size).isGreaterThan(quantity("1500m"))`,
		MessageExpression: `string(quantity(self.size).asInteger())`,
	}}
	spec.Properties["size"] = v1.JSONSchemaProps{Type: "string"}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	version, err := newVersion(crd, &crd.Spec.Versions[0])
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[string]string{"2": "", "1e2880888": "longer than 64 characters, or an exponent over 100"} {
		doc := `{"apiVersion":"example.com/v1","kind":"Ship","metadata":{"name":"a"},"spec":{"flag":"red","size":"` + size +
			`"}}`
		obj, _, err := version.read([]byte(doc), true)
		if err != nil {
			t.Fatal(err)
		}
		errs := version.kind().Rules(t.Context(), "", obj, nil, nil)
		if (len(errs) > 0) != (want != "") || len(errs) > 0 && !strings.Contains(errs.ToAggregate().Error(), want) {
			t.Errorf("%s: got %v, want %q", size, errs, want)
		}
	}
}
