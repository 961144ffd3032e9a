// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"slices"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

func matchRules(ops string, resources ...string) *registrationv1.MatchResources {
	m := &registrationv1.MatchResources{NamespaceSelector: marked}
	for _, r := range rule(ops, resources...) {
		m.ResourceRules = append(m.ResourceRules, registrationv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	return m
}

// enforce stores a policy with a binding and waits until they are in force.
func enforce(
	t *testing.T, cs kubernetes.Interface, name string, spec registrationv1.ValidatingAdmissionPolicySpec,
	b registrationv1.ValidatingAdmissionPolicyBindingSpec,
) {
	t.Helper()
	probe := "!has(object.metadata.labels) || !('probe' in object.metadata.labels) || " +
		"object.metadata.labels['probe'] != '" + name + "'"
	spec.Validations = append(spec.Validations, registrationv1.Validation{Expression: probe, Message: "in force"})
	// The probe is a config map, whatever the policy is about.
	rules := matchRules("CREATE", "configmaps").ResourceRules
	if spec.MatchConstraints != nil {
		spec.MatchConstraints.ResourceRules = append(spec.MatchConstraints.ResourceRules, rules...)
	}
	reg := cs.AdmissionregistrationV1()
	if _, err := reg.ValidatingAdmissionPolicies().Create(t.Context(), &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       spec,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.PolicyName = name
	if b.ValidationActions == nil {
		b.ValidationActions = []registrationv1.ValidationAction{registrationv1.Deny}
	}
	if _, err := reg.ValidatingAdmissionPolicyBindings().Create(
		t.Context(), &registrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-binding"},
			Spec:       b,
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(b.ValidationActions, registrationv1.Deny) {
		awaitProbe(t, cs, name)
	}
}

func replicated(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"a": "b"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "d-"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: servertest.Pod("x").Spec},
		},
	}
}

func TestValidatingPolicy(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	ctx := t.Context()
	forbidden := metav1.StatusReasonForbidden
	isDeployment := []registrationv1.MatchCondition{
		{
			Name:       "kind",
			Expression: "request.resource.resource == 'deployments' || object.metadata.?labels.probe.hasValue()",
		},
	}
	enforce(t, clientset, "replicas", registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matchRules("CREATE,UPDATE", "deployments"),
		MatchConditions:  isDeployment,
		Variables: []registrationv1.Variable{
			{Name: "n", Expression: "has(object.spec) && has(object.spec.replicas) ? object.spec.replicas : 0"},
		},
		Validations: []registrationv1.Validation{
			{Expression: "variables.n <= 3", MessageExpression: "'too many replicas: ' + string(variables.n)"},
			{
				Expression: "variables.n != 2 || namespaceObject.metadata.name != 'hooked'",
				Message:    "two are unlucky here",
				Reason:     &forbidden,
			},
			{Expression: "variables.n != 1 || authorizer.group('').resource('nodes').check('delete').allowed()"},
			{Expression: "variables.n != 3 || object.spec.nothing == 1"},
		},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{})
	const prefix = "is forbidden: ValidatingAdmissionPolicy 'replicas' with binding 'replicas-binding' denied request: "
	for _, tt := range []struct {
		replicas int32
		want     string
		code     int32
	}{
		{replicas: 1},
		{2, prefix + "two are unlucky here", 403},
		{3, "resulted in error: no such key: nothing", 422},
		{4, prefix + "too many replicas: 4", 422},
	} {
		_, err := clientset.AppsV1().Deployments("hooked").Create(ctx, replicated(tt.replicas), metav1.CreateOptions{})
		var status apierrors.APIStatus
		if s, ok := err.(apierrors.APIStatus); ok {
			status = s
		}
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%d replicas: %v", tt.replicas, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || status == nil ||
			status.Status().Code != tt.code):
			t.Errorf("%d replicas: got %v, want %d with %q", tt.replicas, err, tt.code, tt.want)
		}
	}
	if _, err := clientset.AppsV1().Deployments("free").Create(ctx, replicated(9), metav1.CreateOptions{}); err != nil {
		t.Errorf("in a namespace that is not selected: %v", err)
	}
}

func TestPolicyActionsAndParams(t *testing.T) {
	_, clientset, warned := servertest.StartHooked(t)
	ctx := t.Context()
	if _, err := clientset.CoreV1().ConfigMaps("free").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"max": "2"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deny := registrationv1.DenyAction
	kind := &registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	few := []registrationv1.Validation{
		{
			Expression:        "!has(object.spec) || object.spec.replicas <= int(params.data.max)",
			MessageExpression: "'at most ' + params.data.max",
		},
	}
	enforce(t, clientset, "params", registrationv1.ValidatingAdmissionPolicySpec{
		ParamKind:        kind,
		MatchConstraints: matchRules("CREATE", "deployments"),
		Validations:      few,
	},
		registrationv1.ValidatingAdmissionPolicyBindingSpec{ParamRef: &registrationv1.ParamRef{
			Name:                    "limits",
			Namespace:               "free",
			ParameterNotFoundAction: &deny,
		}})
	_, err := clientset.AppsV1().Deployments("hooked").Create(ctx, replicated(3), metav1.CreateOptions{})
	if err == nil || !strings.HasSuffix(err.Error(),
		"ValidatingAdmissionPolicy 'params' with binding 'params-binding' denied request: at most 2") {
		t.Errorf("with a parameter: got %v", err)
	}
	if err := clientset.CoreV1().ConfigMaps("free").Delete(ctx, "limits", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "the parameter's end", func() string {
		_, err := clientset.AppsV1().Deployments("hooked").Create(ctx, replicated(1), metav1.CreateOptions{
			DryRun: []string{"All"},
		})
		if err != nil && strings.Contains(err.Error(),
			"failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction") {
			return ""
		}
		return "still allowed"
	})
	for _, what := range []string{"params"} {
		if err := clientset.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(ctx, what,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	enforce(t, clientset, "warning", registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matchRules("CREATE", "secrets"),
		Validations:      []registrationv1.Validation{{Expression: "!object.metadata.name.startsWith('odd')"}},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ValidationActions: []registrationv1.ValidationAction{
		registrationv1.Warn, registrationv1.Audit,
	}})
	want := "Validation failed for ValidatingAdmissionPolicy 'warning' with binding 'warning-binding': failed " +
		"expression: !object.metadata.name.startsWith('odd')"
	waittest.Right(t, "the warning", func() string {
		warned.Take()
		if _, err := clientset.CoreV1().Secrets("hooked").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "odd-"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := warned.Take(); !slices.Equal(got, []string{want}) {
			return strings.Join(got, "; ")
		}
		return ""
	})
}

func TestMutatingPolicy(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	ctx := t.Context()
	reg := clientset.AdmissionregistrationV1()
	put := func(name string, spec registrationv1.MutatingAdmissionPolicySpec) {
		t.Helper()
		if spec.ReinvocationPolicy == "" {
			spec.ReinvocationPolicy = registrationv1.NeverReinvocationPolicy
		}
		if _, err := reg.MutatingAdmissionPolicies().Create(ctx,
			&registrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := reg.MutatingAdmissionPolicyBindings().Create(ctx, &registrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-binding"},
			Spec:       registrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	apply := func(text string) registrationv1.Mutation {
		return registrationv1.Mutation{
			PatchType:          registrationv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &registrationv1.ApplyConfiguration{Expression: text},
		}
	}
	put("sidecar", registrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints: matchRules("CREATE", "pods"),
		MatchConditions: []registrationv1.MatchCondition{
			{Name: "once", Expression: "!object.spec.containers.exists(c, c.name == 'side')"},
		},
		Mutations: []registrationv1.Mutation{
			apply("Object{spec: Object.spec{containers: [Object.spec.containers{name: 'side', image: 'side'}]}}"),
			{
				PatchType: registrationv1.PatchTypeJSONPatch,
				JSONPatch: &registrationv1.JSONPatch{
					Expression: "[JSONPatch{op: 'add', path: '/metadata/labels/' + " +
						"jsonpatch.escapeKey('example.com/count'), value: string(object.spec.containers.size())}]",
				},
			},
		},
	})
	waittest.Right(t, "the sidecar", func() string {
		p := servertest.PodIn("hooked", "")
		p.GenerateName = "p-"
		got, err := clientset.CoreV1().Pods("hooked").Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		if n := len(got.Spec.Containers); n != 2 || got.Spec.Containers[1].TerminationMessagePath == "" ||
			got.Labels["example.com/count"] != "2" || got.Labels["app"] != "web" {
			return "not there"
		}
		return ""
	})
	put("broken", registrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints: matchRules("CREATE", "secrets"),
		Mutations: []registrationv1.Mutation{
			apply("Object{metadata: Object.metadata{labels: {'a': object.nothing}}}"),
		},
	})
	waittest.Right(t, "the broken policy", func() string {
		_, err := clientset.CoreV1().Secrets("hooked").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}}, metav1.CreateOptions{})
		if err == nil {
			return "not in force"
		}
		if !strings.HasPrefix(err.Error(), "policy 'broken' with binding 'broken-binding' denied request: ") {
			t.Fatalf("got %v", err)
		}
		return ""
	})
}
