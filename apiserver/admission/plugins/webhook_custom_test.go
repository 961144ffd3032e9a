// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// TestAdmissionOfCustomResources: a webhook for v1 sees what is written as v2, as v1; what it adds that no schema knows
// is dropped; a policy judges custom resources, and takes one as its parameter.
func TestAdmissionOfCustomResources(t *testing.T) {
	running, cs, _ := servertest.StartHooked(t)
	dyn, err := dynamic.NewForConfig(running.Rest)
	if err != nil {
		t.Fatal(err)
	}
	c := &servertest.Custom{Running: running, T: t, Interface: dyn}
	c.Define(servertest.TwoVersions(nil))
	hookServer := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		switch {
		case q.Operation == admissionv1.Delete:
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "it stays"}}
		case q.Kind.Version != "v1" || q.RequestKind.Version != "v2" ||
			!strings.Contains(string(q.Object.Raw), `"example.com/v1"`):
			return &admissionv1.AdmissionResponse{
				Result: &metav1.Status{Message: "wrong version: " + q.Kind.Version + " " + string(q.Object.Raw)},
			}
		}
		return patchOf(`[{"op":"replace","path":"/port","value":"9"},{"op":"add","path":"/unknown","value":"x"}]`)
	})
	rules := []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{"CREATE", "DELETE"},
		Rule: registrationv1.Rule{
			APIGroups:   []string{"example.com"},
			APIVersions: []string{"v1"},
			Resources:   []string{"servers"},
		},
	}}
	mutate(t, cs, "m", mutating("servers.example.com", hookServer.client("/"), rules))
	enforce(t, cs, "ports", registrationv1.ValidatingAdmissionPolicySpec{
		ParamKind:        &registrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Server"},
		MatchConstraints: matchRules("CREATE", "secrets"),
		Validations: []registrationv1.Validation{
			{Expression: "request.resource.resource != 'secrets' || params.port != '9'", Message: "the port is nine"},
		},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{
		ParamRef:          &registrationv1.ParamRef{Name: "a", ParameterNotFoundAction: allowAction()},
		ValidationActions: []registrationv1.ValidationAction{registrationv1.Warn},
	})

	v2 := dyn.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "servers"}).Namespace(
		"hooked")
	got, err := v2.Create(t.Context(), servertest.Object("example.com/v2", "Server", "hooked", "a", map[string]any{"port": "1"}),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Object["port"] != "9" || got.Object["unknown"] != nil || got.GetAPIVersion() != "example.com/v2" {
		t.Errorf("got %v", got.Object)
	}
	if err := v2.Delete(t.Context(), "a", metav1.DeleteOptions{}); err == nil ||
		!strings.Contains(err.Error(), "it stays") {
		t.Errorf("delete: got %v", err)
	}
	c2, warned := running.Warned(t)
	waittest.Right(t, "the policy with a custom resource as its parameter", func() string {
		if _, err := c2.CoreV1().Secrets("hooked").Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(warned.Take(), "; "); !strings.HasSuffix(got, "the port is nine") {
			return "warnings: " + got
		}
		return ""
	})
}

func allowAction() *registrationv1.ParameterNotFoundActionType {
	a := registrationv1.AllowAction
	return &a
}
