// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"keelson/apiserver/admission"
	"keelson/auth"
)

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// world is a Reader over some config maps, by "namespace/name", in a world of config maps and nodes.
type world struct {
	Reader
	maps map[string]*corev1.ConfigMap
}

func (world) Equivalents(schema.GroupVersionResource) []schema.GroupVersionResource { return nil }

func (w world) Get(_ context.Context, gvr schema.GroupVersionResource, namespace, name string) (runtime.Object, error) {
	if gvr.Resource == "namespaces" {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": name}}},
			nil
	}
	if m := w.maps[namespace+"/"+name]; m != nil && gvr == configMaps {
		return m, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (w world) Select(
	_ context.Context, _ schema.GroupVersionResource, namespace string, l labels.Selector, _ fields.Selector,
) ([]runtime.Object, error) {
	var out []runtime.Object
	for _, key := range slices.Sorted(maps.Keys(w.maps)) {
		if m := w.maps[key]; m.Namespace == namespace && l.Matches(labels.Set(m.Labels)) {
			out = append(out, m)
		}
	}
	return out, nil
}

func (world) ResourceOf(gvk schema.GroupVersionKind) (schema.GroupVersionResource, bool, bool) {
	switch gvk.Kind {
	case "ConfigMap":
		return configMaps, true, true
	case "Node":
		return corev1.SchemeGroupVersion.WithResource("nodes"), false, true
	}
	return schema.GroupVersionResource{}, false, false
}

func (world) Types(schema.GroupVersionResource) (managedfields.TypeConverter, error) {
	return managedfields.NewDeducedTypeConverter(), nil
}

func limits(name, most string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "dev",
			Name:      name,
			Labels: map[string]string{
				"limits": "yes",
			},
		},
		Data: map[string]string{"most": most},
	}
}

// asked is a request with what became of it.
type asked struct {
	*admission.Request
	warnings []string
	notes    map[string]string
}

func ask(size string) *asked {
	a := &asked{notes: map[string]string{}}
	a.Request = &admission.Request{
		Operation: admission.Create,
		Resource:  configMaps,
		Kind:      corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		Namespace: "dev",
		Name:      "c",
		Object: &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "c"},
			Data:       map[string]string{"size": size},
		},
		User:     &auth.User{Name: "ann"},
		Warn:     func(s string) { a.warnings = append(a.warnings, s) },
		Annotate: func(k, v string) { a.notes[k] = v },
	}
	return a
}

func everything() *registrationv1.MatchResources {
	return &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{
		{RuleWithOperations: registrationv1.RuleWithOperations{
			Operations: []registrationv1.OperationType{"*"},
			Rule: registrationv1.Rule{
				APIGroups:   []string{"*"},
				APIVersions: []string{"*"},
				Resources: []string{
					"*",
				},
			},
		}},
	}}
}

type (
	policySpec  = registrationv1.ValidatingAdmissionPolicySpec
	bindingSpec = registrationv1.ValidatingAdmissionPolicyBindingSpec
)

// inForce is a plugin with one policy and its bindings, which deny unless they say otherwise.
func inForce(w world, s policySpec, bindings ...bindingSpec) *Validating {
	validating := NewValidating(Config{Reader: w, Metrics: admission.NewMetrics()})
	if s.MatchConstraints == nil {
		s.MatchConstraints = everything()
	}
	validating.SetPolicy(&registrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: s})
	for i, b := range bindings {
		b.PolicyName = "p"
		if b.ValidationActions == nil {
			b.ValidationActions = []registrationv1.ValidationAction{registrationv1.Deny}
		}
		validating.SetBinding(&registrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + i))},
			Spec:       b,
		})
	}
	return validating
}

func judged(texts ...string) []registrationv1.Validation {
	var out []registrationv1.Validation
	for _, text := range texts {
		out = append(out, registrationv1.Validation{Expression: text})
	}
	return out
}

func check(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

func TestComposition(t *testing.T) {
	variables := []registrationv1.Variable{
		{Name: "size", Expression: "int(object.data.size)"},
		{Name: "twice", Expression: "variables.size * 2"},
		{Name: "never", Expression: "object.data.missing"},
		{
			Name:       "team",
			Expression: "namespaceObject.metadata.labels.team",
		},
	}
	for _, tt := range []struct{ what, text, size, want string }{
		{"a variable", "variables.size < 10", "9", ""},
		{"one of another", "variables.twice < 10", "5", "denied request: failed expression: variables.twice < 10"},
		{"the namespace", "variables.team == 'dev'", "1", ""},
		{"one that fails is no matter where it is not used", "variables.size == 1 || variables.never == 'x'", "1", ""},
		{
			"one that fails", "variables.never == 'x'", "1",
			"composited variable \"never\" fails to evaluate: no such key: missing",
		},
		{"one that is not there", "variables.other == 1", "1", "undefined field 'other'"},
	} {
		p := inForce(world{}, policySpec{Variables: variables, Validations: judged(tt.text)}, bindingSpec{})
		check(t, tt.what, p.Validate(t.Context(), ask(tt.size).Request), tt.want)
	}
	p := inForce(world{}, policySpec{
		Variables:       variables,
		MatchConditions: []registrationv1.MatchCondition{{Name: "big", Expression: "variables.size > 5"}},
		Validations:     judged("false"),
	}, bindingSpec{})
	check(t, "a variable in a condition that does not hold", p.Validate(t.Context(), ask("5").Request), "")
	check(t, "a variable in a condition that holds", p.Validate(t.Context(), ask("6").Request),
		"failed expression: false")
}

func TestMessages(t *testing.T) {
	forbidden := metav1.StatusReasonForbidden
	for _, tt := range []struct {
		what string
		v    registrationv1.Validation
		want string
		code int32
	}{
		{"the expression", registrationv1.Validation{Expression: " false\n"}, "failed expression: false", 422},
		{"a message", registrationv1.Validation{Expression: "false", Message: " no \n"}, "no", 422},
		{
			"a message that is made", registrationv1.Validation{
				Expression:        "false",
				Message:           "no",
				MessageExpression: "'no to ' + object.data.size",
			}, "no to 1", 422,
		},
		{
			"a made one that fails", registrationv1.Validation{
				Expression:        "false",
				Message:           "no",
				MessageExpression: "object.data.missing",
			}, "no", 422,
		},
		{
			"a made one of two lines", registrationv1.Validation{
				Expression:        "false",
				Message:           "no",
				MessageExpression: "'a\\nb'",
			}, "no", 422,
		},
		{
			"a made one of nothing", registrationv1.Validation{
				Expression:        "false",
				Message:           "no",
				MessageExpression: "'  '",
			}, "no", 422,
		},
		{"a reason", registrationv1.Validation{Expression: "false", Message: "no", Reason: &forbidden}, "no", 403},
	} {
		err := inForce(world{}, policySpec{Validations: []registrationv1.Validation{tt.v}}, bindingSpec{}).Validate(
			t.Context(), ask("1").Request)
		s, ok := err.(*apierrors.StatusError) //nolint:errorlint // it is returned as it is
		want := `configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'a' denied request: ` + tt.want
		if !ok || s.Error() != want || s.ErrStatus.Code != tt.code || len(s.ErrStatus.Details.Causes) != 1 {
			t.Errorf("%s: got %v, want %d %s", tt.what, err, tt.code, want)
		}
	}
	for reason, code := range map[metav1.StatusReason]int32{
		metav1.StatusReasonUnauthorized:          http.StatusUnauthorized,
		metav1.StatusReasonRequestEntityTooLarge: http.StatusRequestEntityTooLarge,
		metav1.StatusReasonInvalid:               http.StatusUnprocessableEntity,
	} {
		if got := codeOf(reason); got != code {
			t.Errorf("%s: got %d, want %d", reason, got, code)
		}
	}
}

func TestFailurePolicy(t *testing.T) {
	fail := registrationv1.Fail
	ignore := registrationv1.Ignore
	type spec = policySpec
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", 100), ",") + "]"
	costly := list + ".all(a, " + list + ".all(b, " + list + ".all(c, " + list + ".all(d, a + b + c + d > 0))))"
	for _, tt := range []struct {
		what string
		edit func(*spec)
		want string // with Fail; nothing with Ignore
	}{
		{
			"an expression that fails", func(s *spec) { s.Validations = judged("object.data.missing == 'x'") },
			"expression 'object.data.missing == 'x'' resulted in error: no such key: missing",
		},
		{
			"one that is none", func(s *spec) { s.Validations = judged("object.(") },
			"compilation error: compilation failed",
		},
		{"one that costs too much", func(s *spec) { s.Validations = judged(costly) }, "cost limit exceeded"},
		{"a condition that fails", func(s *spec) {
			s.MatchConditions = []registrationv1.MatchCondition{{Name: "c", Expression: "object.data.missing == 'x'"}}
			s.Validations = judged("true")
		}, "no such key: missing"},
		{"parameters of an unknown kind", func(s *spec) {
			s.ParamKind = &registrationv1.ParamKind{APIVersion: "v1", Kind: "Riddle"}
			s.Validations = judged("true")
		}, "failed to configure binding: paramKind kind `"},
		{"an annotation that fails", func(s *spec) {
			s.Validations = judged("true")
			s.AuditAnnotations = []registrationv1.AuditAnnotation{
				{Key: "k", ValueExpression: "string(object.data.missing)"},
			}
		}, "no such key: missing"},
		{"no constraints", func(s *spec) {
			s.Validations = judged("true")
			s.MatchConstraints = &registrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}},
			}}
		}, "failed to configure policy"},
	} {
		for _, policy := range []*registrationv1.FailurePolicyType{nil, &fail, &ignore} {
			s := spec{FailurePolicy: policy}
			tt.edit(&s)
			want := tt.want
			if policy == &ignore {
				want = ""
			}
			b := bindingSpec{}
			if s.ParamKind != nil {
				b.ParamRef = &registrationv1.ParamRef{Name: "x"}
			}
			check(t, tt.what, inForce(world{}, s, b).Validate(t.Context(), ask("1").Request), want)
		}
	}
	// What is denied is denied, whatever the policy about failures.
	p := inForce(world{}, spec{FailurePolicy: &ignore, Validations: judged("object.data.missing == 'x'", "false")},
		bindingSpec{})
	check(t, "a denial and a failure", p.Validate(t.Context(), ask("1").Request), "failed expression: false")
}

func TestParameters(t *testing.T) {
	deny := registrationv1.DenyAction
	allow := registrationv1.AllowAction
	kind := &registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	w := world{maps: map[string]*corev1.ConfigMap{"dev/few": limits("few", "2"), "dev/many": limits("many", "9")}}
	yes := &metav1.LabelSelector{MatchLabels: map[string]string{"limits": "yes"}}
	no := &metav1.LabelSelector{MatchLabels: map[string]string{"limits": "no"}}
	for _, tt := range []struct {
		what string
		ref  *registrationv1.ParamRef
		size string
		want string
	}{
		{"by name", &registrationv1.ParamRef{Name: "many"}, "5", ""},
		{"by name, too much", &registrationv1.ParamRef{Name: "few"}, "5", "at most 2 as ConfigMap few says"},
		{"by name in a namespace", &registrationv1.ParamRef{Name: "few", Namespace: "dev"}, "5", "at most 2"},
		{
			"in another namespace, denied", &registrationv1.ParamRef{
				Name:                    "few",
				Namespace:               "ops",
				ParameterNotFoundAction: &deny,
			}, "5", "no params found for policy binding with `Deny` parameterNotFoundAction",
		},
		{"not there, allowed", &registrationv1.ParamRef{Name: "none", ParameterNotFoundAction: &allow}, "5", ""},
		{
			"not there, denied", &registrationv1.ParamRef{Name: "none", ParameterNotFoundAction: &deny}, "5",
			"failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction",
		},
		{"all that a selector finds", &registrationv1.ParamRef{Selector: yes}, "5", "at most 2"},
		{"all of them hold", &registrationv1.ParamRef{Selector: yes}, "1", ""},
		{
			"a selector that finds none, allowed", &registrationv1.ParamRef{
				Selector:                no,
				ParameterNotFoundAction: &allow,
			}, "5", "",
		},
		{
			"a selector that finds none, denied", &registrationv1.ParamRef{
				Selector:                no,
				ParameterNotFoundAction: &deny,
			}, "5", "no params found",
		},
		{"name and selector", &registrationv1.ParamRef{Name: "few", Selector: yes}, "1", "mutually exclusive"},
		{"nothing", &registrationv1.ParamRef{}, "1", "one of name or selector must be provided"},
		{"no reference: params is null", nil, "1", "no such key: data"},
	} {
		p := inForce(w, policySpec{
			ParamKind: kind,
			Validations: []registrationv1.Validation{{
				Expression: "int(object.data.size) <= int(params.data.most)",
				MessageExpression: "'at most ' + params.data.most + ' as ' + params.kind + ' ' + " +
					"params.metadata.name + ' says'",
			}},
		}, bindingSpec{ParamRef: tt.ref})
		check(t, tt.what, p.Validate(t.Context(), ask(tt.size).Request), tt.want)
	}
	nodes := policySpec{
		ParamKind:   &registrationv1.ParamKind{APIVersion: "v1", Kind: "Node"},
		Validations: judged("true"),
	}
	check(t, "a namespace for a kind without", inForce(w, nodes, bindingSpec{ParamRef: &registrationv1.ParamRef{
		Name:      "n",
		Namespace: "dev",
	}}).Validate(t.Context(), ask("1").Request),
		"paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	cluster := ask("1")
	cluster.Namespace = ""
	check(t, "a request without a namespace", inForce(w, policySpec{ParamKind: kind, Validations: judged("true")},
		bindingSpec{ParamRef: &registrationv1.ParamRef{Name: "few"}}).Validate(t.Context(), cluster.Request),
		"cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
}

func TestActionsAndAnnotations(t *testing.T) {
	warnAudit := []registrationv1.ValidationAction{registrationv1.Warn, registrationv1.Audit}
	w := world{maps: map[string]*corev1.ConfigMap{"dev/few": limits("few", "2"), "dev/many": limits("many", "9")}}
	kind := &registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	spec := policySpec{
		ParamKind:   kind,
		Validations: judged("int(object.data.size) < int(params.data.most)"),
		AuditAnnotations: []registrationv1.AuditAnnotation{
			{Key: "most", ValueExpression: "'limit ' + params.data.most"}, {Key: "none", ValueExpression: "null"}, {
				Key:             "blank",
				ValueExpression: "' '",
			}, {Key: "same", ValueExpression: "'x'"},
		},
	}
	few := &registrationv1.ParamRef{Name: "few"}
	many := &registrationv1.ParamRef{Name: "many"}
	asked := ask("5")
	if err := inForce(w, spec, bindingSpec{ParamRef: few, ValidationActions: warnAudit}, bindingSpec{ParamRef: many}).
		Validate(t.Context(), asked.Request); err != nil {
		t.Errorf("warned of and audited: %v", err)
	}
	if want := []string{"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'a': failed expression: " +
		"int(object.data.size) < int(params.data.most)"}; !slices.Equal(asked.warnings, want) {
		t.Errorf("warnings: got %q, want %q", asked.warnings, want)
	}
	want := map[string]string{
		"p/most": "limit 2, limit 9",
		"p/same": "x",
		"validation.policy.admission.k8s.io/validation_failure": `[{"message":"failed expression: int(object.data.size) \u003c int(params.data.most)","policy":"p","binding":"a","expressionIndex":0,"validationActions":["Warn","Audit"]}]`,
	}
	if !maps.Equal(asked.notes, want) {
		t.Errorf("annotations: got %q, want %q", asked.notes, want)
	}
	// An annotation that cannot be evaluated denies, even if the binding only warns.
	broken := policySpec{
		Validations: judged("true"),
		AuditAnnotations: []registrationv1.AuditAnnotation{
			{Key: "k", ValueExpression: "string(object.data.missing)"},
		},
	}
	check(t, "a broken annotation", inForce(w, broken, bindingSpec{ValidationActions: warnAudit}).Validate(t.Context(),
		ask("5").Request), "no such key: missing")
}

// TestBindings: a binding narrows what its policy means, the first denial in order is the answer, and what is removed
// is out of force.
func TestBindings(t *testing.T) {
	ops := everything()
	ops.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "ops"}}
	p := inForce(world{}, policySpec{Validations: judged("false")}, bindingSpec{MatchResources: ops})
	check(t, "a binding of another namespace", p.Validate(t.Context(), ask("1").Request), "")
	p = inForce(world{}, policySpec{Validations: judged("false")}, bindingSpec{MatchResources: ops}, bindingSpec{},
		bindingSpec{})
	check(t, "the second binding", p.Validate(t.Context(), ask("1").Request), "with binding 'b' denied")
	p.RemoveBinding(&registrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	check(t, "the third, after the second went", p.Validate(t.Context(), ask("1").Request), "with binding 'c' denied")
	p.RemovePolicy(&registrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	check(t, "without the policy", p.Validate(t.Context(), ask("1").Request), "")
	if p.active.Load() != nil {
		t.Error("something is in force")
	}
}

// TestMutations: patches apply in order, each seeing what those before it did; failures go by the failure policy.
func TestMutations(t *testing.T) {
	json := func(text string) registrationv1.Mutation {
		return registrationv1.Mutation{
			PatchType: registrationv1.PatchTypeJSONPatch,
			JSONPatch: &registrationv1.JSONPatch{Expression: text},
		}
	}
	add := func(key, value string) registrationv1.Mutation {
		return json("[JSONPatch{op: 'add', path: '/data/" + key + "', value: " + value + "}]")
	}
	ignore := registrationv1.Ignore
	for _, tt := range []struct {
		what      string
		mutations []registrationv1.Mutation
		policy    *registrationv1.FailurePolicyType
		want      map[string]string
		err       string
	}{
		{"one", []registrationv1.Mutation{add("a", "'1'")}, nil, map[string]string{"size": "1", "a": "1"}, ""},
		{
			"one after the other", []registrationv1.Mutation{
				add("a", "'1'"), add("b", "object.data.a + variables.more"),
			}, nil, map[string]string{"size": "1", "a": "1", "b": "1+"}, "",
		},
		{
			"one that fails",
			[]registrationv1.Mutation{add("a", "object.data.missing")},
			nil, nil,
			"policy 'p' with binding 'b' denied request: ",
		},
		{
			"one that fails and does not matter", []registrationv1.Mutation{
				add("a", "object.data.missing"), add("b", "'2'"),
			}, &ignore, map[string]string{"size": "1", "b": "2"}, "",
		},
		{"one that is none", []registrationv1.Mutation{json("[JSONPatch{")}, nil, nil, "denied request: "},
	} {
		m := admission.NewMetrics()
		mutating := NewMutating(Config{Reader: world{}, Metrics: m})
		mutating.SetPolicy(&registrationv1.MutatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: registrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints:   everything(),
				Mutations:          tt.mutations,
				FailurePolicy:      tt.policy,
				ReinvocationPolicy: registrationv1.NeverReinvocationPolicy,
				Variables:          []registrationv1.Variable{{Name: "more", Expression: "'+'"}},
			},
		})
		mutating.SetBinding(&registrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "b"},
			Spec:       registrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "p"},
		})
		a := ask("1")
		check(t, tt.what, mutating.Admit(t.Context(), a.Request), tt.err)
		if got := a.Object.(*corev1.ConfigMap).Data; tt.err == "" && !maps.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, got, tt.want)
		}
	}
}

// TestDearMutations: a policy's quantity of millions of digits is refused before it is parsed.
func TestDearMutations(t *testing.T) {
	for what, mutation := range map[string]registrationv1.Mutation{
		"a JSON patch": {
			PatchType: registrationv1.PatchTypeJSONPatch,
			JSONPatch: &registrationv1.JSONPatch{
				Expression: "[JSONPatch{op: 'add', path: '/status/capacity', value: {'cpu': object.metadata.name}}]",
			},
		},
		"an apply configuration": {
			PatchType: registrationv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &registrationv1.ApplyConfiguration{
				Expression: "Object{status: Object.status{capacity: {'cpu': object.metadata.name}}}",
			},
		},
	} {
		mutating := NewMutating(Config{Reader: world{}, Metrics: admission.NewMetrics()})
		mutating.SetPolicy(&registrationv1.MutatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: registrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints: everything(),
				Mutations:        []registrationv1.Mutation{mutation},
			},
		})
		mutating.SetBinding(&registrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "b"},
			Spec:       registrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "p"},
		})
		for name, want := range map[string]string{"100": "", "1e2880888": "quantities must match the regular expression"} {
			r := &admission.Request{
				Operation: admission.Create,
				Resource:  corev1.SchemeGroupVersion.WithResource("nodes"),
				Kind:      corev1.SchemeGroupVersion.WithKind("Node"),
				Name:      name,
				Object:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
				User:      &auth.User{Name: "ann"},
			}
			check(t, what, mutating.Admit(t.Context(), r), want)
			if got := r.Object.(*corev1.Node).Status.Capacity; want == "" && got.Cpu().Value() != 100 {
				t.Errorf("%s: got %v", what, got)
			}
		}
	}
}

// TestParametersAreBounded: the parameters that a tenant makes for a policy cannot cost more together than the budget,
// and cannot end a policy by that either.
func TestParametersAreBounded(t *testing.T) {
	ignore := registrationv1.Ignore
	yes := &registrationv1.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"limits": "yes"}}}
	kind := &registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	made := func(n int, text string) world {
		w := world{maps: map[string]*corev1.ConfigMap{}}
		for i := range n {
			m := limits(fmt.Sprintf("m%03d", i), "9")
			m.Data["text"] = text
			w.maps["dev/"+m.Name] = m
		}
		return w
	}
	large := strings.Repeat("x", 1<<20)
	const costly = "!params.data.text.contains(params.data.text + 'y')" // 360,000 units for 6,000 characters
	text := large[:6000]
	const refused = "its parameters cost more than 22500000 together"
	for _, tt := range []struct {
		what, rule string
		world      world
		want       string
	}{
		{"400 small ones", "params.data.most == '9'", made(400, ""), ""},
		{"100 large ones", "params.data.most == '9'", made(100, large), ""},
		{"400 large ones", "params.data.most == '9'", made(400, large), refused},
		{"400 that cost much", costly, made(400, text), refused},
		{"one that costs too much", strings.Repeat(costly+" && ", 20) + "true", made(1, text), ""},
	} {
		deny := inForce(tt.world, policySpec{
			ParamKind:     kind,
			FailurePolicy: &ignore,
			Validations:   judged(tt.rule),
		}, bindingSpec{ParamRef: yes})
		check(t, tt.what, deny.Validate(t.Context(), ask("1").Request), tt.want)
	}

	warn := inForce(made(400, large), policySpec{ParamKind: kind, Validations: judged("true")}, bindingSpec{
		ParamRef:          yes,
		ValidationActions: []registrationv1.ValidationAction{registrationv1.Warn},
	})
	a := ask("1")
	check(t, "a warning", warn.Validate(t.Context(), a.Request), "")
	if len(a.warnings) != 1 || !strings.Contains(a.warnings[0], refused) {
		t.Errorf("warnings: %q", a.warnings)
	}

	mutating := NewMutating(Config{Reader: made(400, text), Metrics: admission.NewMetrics()})
	mutating.SetPolicy(&registrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: registrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: everything(),
			ParamKind:        kind,
			FailurePolicy:    &ignore,
			Mutations: []registrationv1.Mutation{{
				PatchType: registrationv1.PatchTypeJSONPatch,
				JSONPatch: &registrationv1.JSONPatch{Expression: costly + " ? [] : [JSONPatch{op: 'remove', path: '/data'}]"},
			}},
		},
	})
	mutating.SetBinding(&registrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       registrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "p", ParamRef: yes},
	})
	check(t, "a mutation", mutating.Admit(t.Context(), ask("1").Request), refused)
}
