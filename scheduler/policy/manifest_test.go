// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// documents are the manifest's, read strictly.
func documents(
	t *testing.T,
) (crd *apiextensionsv1.CustomResourceDefinition, role *rbacv1.ClusterRole, binding *rbacv1.ClusterRoleBinding) {
	t.Helper()
	crd = &apiextensionsv1.CustomResourceDefinition{}
	role = &rbacv1.ClusterRole{}
	binding = &rbacv1.ClusterRoleBinding{}
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(Manifest)))
	for _, into := range []any{crd, role, binding} {
		doc, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(doc, into); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last document: %v", err)
	}
	return crd, role, binding
}

// stockErrors are what the API server of Kubernetes would say of a new definition: its own functions are asked.
func stockErrors(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	t.Helper()
	crd = crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	in := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, in,
		nil); err != nil {
		t.Fatal(err)
	}
	in.Status.StoredVersions = []string{"v1"}
	return validation.ValidateCustomResourceDefinition(t.Context(), in)
}

// TestManifestOnStockServer: kube-apiserver takes the definition: its schema is structural, and its rules cost less
// than they may by estimate.
func TestManifestOnStockServer(t *testing.T) {
	crd, _, _ := documents(t)
	for _, err := range stockErrors(t, crd) {
		t.Error(err)
	}
	// The same functions find what a stock server would refuse.
	root := func(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.JSONSchemaProps {
		return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	}
	for want, spoil := range map[string]func(*apiextensionsv1.JSONSchemaProps){
		"estimated rule cost exceeds budget": func(s *apiextensionsv1.JSONSchemaProps) {
			filters := s.Properties["filters"]
			filters.MaxItems = nil
			s.Properties["filters"] = filters
			s.XValidations[0].Rule = "self.filters.all(a, self.filters.all(b, a.expression.contains(b.expression)))"
		},
		"undefined field 'filter'": func(s *apiextensionsv1.JSONSchemaProps) {
			s.XValidations[0].Rule = "has(self.filter)"
		},
		"must not be empty for specified array items": func(s *apiextensionsv1.JSONSchemaProps) {
			names := s.Properties["schedulerNames"]
			names.Items.Schema.Type = ""
			s.Properties["schedulerNames"] = names
		},
	} {
		bad := crd.DeepCopy()
		spec := root(bad).Properties["spec"]
		spoil(&spec)
		root(bad).Properties["spec"] = spec
		if got := stockErrors(t, bad).ToAggregate(); got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("got %v, want %q", got, want)
		}
	}
}

// TestManifestKnowsAllFields: nothing of what a policy can say is dropped by the schema.
func TestManifestKnowsAllFields(t *testing.T) {
	crd, _, _ := documents(t)
	in := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema, in, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := schema.NewStructural(in)
	if err != nil {
		t.Fatal(err)
	}
	selector := &metav1.LabelSelector{
		MatchLabels: map[string]string{"a": "b"},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"b"}},
		},
	}
	text, err := json.Marshal(map[string]any{
		"spec": Spec{
			SchedulerNames:    []string{"s"},
			NamespaceSelector: selector,
			PodSelector:       selector,
			Match:             "true",
			FailurePolicy:     Ignore,
			Filters:           []Filter{{Expression: "true", Message: "m", MessageExpression: "'m'"}},
			Scores:            []Score{{Expression: "1", Weight: new(int32(2))}},
		},
		"status": map[string]any{
			"observedGeneration": 1,
			"conditions": []metav1.Condition{{
				Type:               "Ready",
				Status:             "True",
				Reason:             "r",
				Message:            "m",
				ObservedGeneration: 1,
				LastTransitionTime: metav1.Unix(1, 0),
			}},
			"effective": map[string]any{"generation": 1, "spec": map[string]any{"filters": []any{}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	object["spec"].(map[string]any)["unknown"] = true
	dropped := pruning.PruneWithOptions(object, structural, true, schema.UnknownFieldPathOptions{
		TrackUnknownFieldPaths: true,
	})
	if !slices.Equal(dropped, []string{"spec.unknown"}) {
		t.Errorf("the schema drops %q, want what is no field of a policy, and no more", dropped)
	}
}

// TestManifestRights: the scheduler's user may read policies and their definition, and write their status. It may do
// nothing else.
func TestManifestRights(t *testing.T) {
	_, role, binding := documents(t)
	want := []rbacv1.PolicyRule{
		{
			APIGroups:     []string{"apiextensions.k8s.io"},
			Resources:     []string{"customresourcedefinitions"},
			ResourceNames: []string{CRD},
			Verbs:         []string{"get", "list", "watch"},
		},
		{
			APIGroups: []string{Resource.Group},
			Resources: []string{Resource.Resource},
			Verbs:     []string{"get", "list", "watch"},
		},
		{
			APIGroups: []string{Resource.Group},
			Resources: []string{Resource.Resource + "/status"},
			Verbs: []string{
				"update",
			},
		},
	}
	got, err := json.Marshal(role.Rules)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(want); err != nil || !bytes.Equal(got, text) {
		t.Errorf("rules %s, want %s", got, text)
	}
	if s := binding.Subjects; binding.RoleRef.Name != role.Name || len(s) != 1 || s[0].Kind != "User" ||
		s[0].Name != "system:kube-scheduler" {
		t.Errorf("binding %+v", binding)
	}
}
