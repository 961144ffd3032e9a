// SPDX-License-Identifier: Apache-2.0

package policystatus

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"keelson/controllers/controllertest"
)

// fixed are types that are always the same: things and gadgets with a size, and boxes without a schema.
type fixed struct{ err error }

func (f fixed) Kinds(gvr schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	kind := map[string]string{"things": "Thing", "gadgets": "Gadget", "boxes": "Box"}[gvr.Resource]
	if gvr.Group != "example.com" || kind == "" {
		return nil, f.err
	}
	return []schema.GroupVersionKind{gvr.GroupVersion().WithKind(kind)}, f.err
}

func (f fixed) Schema(gvk schema.GroupVersionKind) (*Schema, error) {
	object := func(fields map[string]spec.Schema) *Schema {
		return &Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: fields}}
	}
	switch gvk.Kind {
	case "Thing", "Gadget":
		size := spec.Int32Property()
		if gvk.Kind == "Gadget" {
			size = spec.StringProperty()
		}
		return object(map[string]spec.Schema{"spec": *object(map[string]spec.Schema{"size": *size})}), nil
	case "Limits":
		return object(map[string]spec.Schema{"most": *spec.Int32Property()}), nil
	}
	return nil, nil
}

func policy(resources []string, edit func(
	*registrationv1.ValidatingAdmissionPolicySpec,
),
) *registrationv1.ValidatingAdmissionPolicy {
	p := &registrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1}}
	p.Spec.MatchConstraints = &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{
		RuleWithOperations: registrationv1.RuleWithOperations{Rule: registrationv1.Rule{
			APIGroups:   []string{"example.com"},
			APIVersions: []string{"v1"},
			Resources:   resources,
		}},
	}}}
	edit(&p.Spec)
	return p
}

func rules(texts ...string) []registrationv1.Validation {
	var out []registrationv1.Validation
	for _, text := range texts {
		out = append(out, registrationv1.Validation{Expression: text})
	}
	return out
}

func TestCheck(t *testing.T) {
	type spec = registrationv1.ValidatingAdmissionPolicySpec
	for _, tt := range []struct {
		what      string
		resources []string
		edit      func(*spec)
		want      []string // "field: part of the warning"
	}{
		{"right", []string{"things"}, func(s *spec) {
			s.Validations = rules("object.spec.size > 1", "oldObject == null || request.namespace == 'a'")
		}, nil},
		{"authorizer", []string{"things"}, func(s *spec) {
			s.Validations = rules("authorizer.group('').resource('pods').check('get').allowed()",
				"authorizer.requestResource.check('get').allowed()", "namespaceObject.metadata.name == 'a'")
		}, nil},
		{
			"no such field", []string{"things"}, func(s *spec) {
				s.Validations = rules("object.spec.size > 1", "object.spec.sise > 1")
			}, []string{
				"spec.validations[1].expression: example.com/v1, Kind=Thing: ERROR: <input>:1:12: undefined field " +
					"'sise'",
			},
		},
		{"wrong type", []string{"things"}, func(s *spec) { s.Validations = rules("object.spec.size > 'a'") }, []string{
			"spec.validations[0].expression: example.com/v1, Kind=Thing: ERROR: <input>:1:18: found no matching " +
				"overload for '_>_' applied to '(int, string)'",
		}},
		{
			"one of two kinds", []string{"things", "gadgets"}, func(s *spec) {
				s.Validations = rules("object.spec.size > 1")
			}, []string{
				"spec.validations[0].expression: example.com/v1, Kind=Gadget: ERROR: <input>:1:18: found no matching " +
					"overload for '_>_' applied to '(string, int)'",
			},
		},
		{"message", []string{"things"}, func(s *spec) {
			s.Validations = []registrationv1.Validation{
				{Expression: "true", MessageExpression: "string(object.spec.sise)"},
			}
		}, []string{"spec.validations[0].messageExpression: example.com/v1, Kind=Thing: ERROR: <input>:1:19: " +
			"undefined field 'sise'"}},
		{"variables", []string{"things"}, func(s *spec) {
			s.Variables = []registrationv1.Variable{
				{Name: "size", Expression: "object.spec.size"},
				{Name: "twice", Expression: "variables.size * 2"},
			}
			s.Validations = rules("variables.twice > 1", "variables.size == 'a'", "variables.other")
		}, []string{"spec.validations[1].expression: example.com/v1, Kind=Thing: ERROR: <input>:1:16: found no " +
			"matching overload for '_==_'", "spec.validations[2].expression: example.com/v1, Kind=Thing: ERROR: " +
			"<input>:1:10: undefined field 'other'"}},
		{"parameters", []string{"things"}, func(s *spec) {
			s.ParamKind = &registrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Limits"}
			s.Validations = rules("object.spec.size < params.most", "object.spec.size < params.least")
		}, []string{"spec.validations[1].expression: example.com/v1, Kind=Thing: ERROR: <input>:1:26: undefined " +
			"field 'least'"}},
		{"parameters without a schema", []string{"things"}, func(s *spec) {
			s.ParamKind = &registrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Box"}
			s.Validations = rules("object.spec.size < params.least")
		}, nil},
		{"parameters of the object's kind", []string{"things"}, func(s *spec) {
			s.ParamKind = &registrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Thing"}
			s.Validations = rules("object.spec.size < params.spec.size")
		}, nil},
		{"every resource", []string{"*"}, func(s *spec) { s.Validations = rules("object.nothing") }, nil},
		{"subresources", []string{"things/status"}, func(s *spec) { s.Validations = rules("object.nothing") }, nil},
		{"kind without a schema", []string{"boxes"}, func(s *spec) { s.Validations = rules("object.nothing") }, nil},
		{"unknown resource", []string{"others"}, func(s *spec) { s.Validations = rules("object.nothing") }, nil},
	} {
		got, err := Check(policy(tt.resources, tt.edit), fixed{})
		if err != nil {
			t.Errorf("%s: %v", tt.what, err)
			continue
		}
		var said []string
		for _, w := range got {
			said = append(said, w.FieldRef+": "+w.Warning)
		}
		if len(said) != len(tt.want) || slices.ContainsFunc(tt.want, func(w string) bool {
			return !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, w) })
		}) {
			t.Errorf("%s: got %q, want %q", tt.what, said, tt.want)
		}
	}
	if _, err := Check(policy([]string{"things"}, func(*registrationv1.ValidatingAdmissionPolicySpec) {}),
		fixed{errors.New("out")}); err == nil {
		t.Error("types that could not be had: no error")
	}
}

func TestResourcesOf(t *testing.T) {
	for _, tt := range []struct {
		rule registrationv1.Rule
		want int
	}{
		{
			registrationv1.Rule{
				APIGroups:   []string{"b", "a"},
				APIVersions: []string{"v1", "v2"},
				Resources: []string{
					"x", "y/status", "*",
				},
			}, 4,
		},
		{registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"v1"}, Resources: []string{"x"}}, 0},
		{registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"x"}}, 0},
	} {
		got := resourcesOf(&tt.rule)
		if len(got) != tt.want || tt.want > 0 && (got[0].Group != "a" || got[0].Version != "v1" ||
			got[0].Resource != "x") {
			t.Errorf("%v: got %v, want %d from the first in order", tt.rule, got, tt.want)
		}
	}
}

// TestStatus: a policy's generation is checked once, and the status says so.
func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policy([]string{"things"}, func(s *registrationv1.ValidatingAdmissionPolicySpec) {
			s.Validations = rules("object.nothing")
		})
		cluster := controllertest.New(p)
		cluster.Start(t, "validatingadmissionpolicy-status-controller", New)
		policies := cluster.AdmissionregistrationV1().ValidatingAdmissionPolicies()
		time.Sleep(time.Second)
		got, err := policies.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil || got.Status.ObservedGeneration != 1 || got.Status.TypeChecking == nil ||
			len(got.Status.TypeChecking.ExpressionWarnings) != 0 {
			t.Fatalf("got %+v, %v; want generation 1 checked without warnings: the server serves nothing", got.Status,
				err)
		}
		writes := func() (n int) {
			for _, a := range cluster.Fake.Actions() {
				if a.GetVerb() == "update" && a.GetSubresource() == "status" {
					n++
				}
			}
			return n
		}
		if n := writes(); n != 1 {
			t.Errorf("%d writes for one generation, want 1", n)
		}
		got.Generation = 2
		if _, err := policies.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got, err = policies.Get(t.Context(), "p", metav1.GetOptions{}); err != nil ||
			got.Status.ObservedGeneration != 2 || writes() != 2 {
			t.Errorf("got %+v, %v after %d writes; want generation 2 after 2", got.Status, err, writes())
		}
	})
}
