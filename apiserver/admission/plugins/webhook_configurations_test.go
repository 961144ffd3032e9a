// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// TestWebhookConfigurations: configurations can be listed, patched, updated and deleted by collection, and what they
// say holds at once.
func TestWebhookConfigurations(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	hookServer := hookAt(t, func(path string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		switch {
		case path == "/mutate":
			return patchOf(`[{"op":"add","path":"/data/mutated","value":"yes"}]`)
		case q.Name == "bad":
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "no"}}
		}
		return allow()
	})
	ctx := t.Context()
	reg := clientset.AdmissionregistrationV1()
	kind := metav1.ObjectMeta{Labels: map[string]string{"set": "mine"}}
	named := func(name string) metav1.ObjectMeta {
		m := *kind.DeepCopy()
		m.Name = name
		return m
	}
	if _, err := reg.MutatingWebhookConfigurations().Create(ctx, &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: named("m"),
		Webhooks: []registrationv1.MutatingWebhook{mutating("m.example.com", hookServer.client("/mutate"),
			rule("CREATE", "configmaps"))},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := reg.ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: named("v"),
		Webhooks: []registrationv1.ValidatingWebhook{validating("v.example.com", hookServer.client("/judge"),
			rule("CREATE", "configmaps"))},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	try := func(name string) (mutated, denied bool) {
		t.Helper()
		m, err := clientset.CoreV1().ConfigMaps("hooked").Create(ctx, config(name, nil), metav1.CreateOptions{
			DryRun: []string{"All"},
		})
		if err != nil && !strings.Contains(err.Error(), "denied the request") {
			t.Fatal(err)
		}
		return err == nil && m.Data["mutated"] != "", err != nil
	}
	until := func(what string, mutated, denied bool) {
		t.Helper()
		waittest.Right(t, what, func() string {
			gotMutated, _ := try("good")
			_, gotDenied := try("bad")
			if gotMutated != mutated || gotDenied != denied {
				return "not so yet"
			}
			return ""
		})
	}
	until("both in force", true, true)
	m, err := reg.MutatingWebhookConfigurations().Get(ctx, "m", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Webhooks[0].Rules[0].Operations = []registrationv1.OperationType{"UPDATE"}
	if _, err := reg.MutatingWebhookConfigurations().Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("after the update", false, true)
	patch := []byte(`[{"op":"replace","path":"/webhooks/0/rules/0/operations","value":["CREATE"]}]`)
	if _, err := reg.MutatingWebhookConfigurations().Patch(ctx, "m", types.JSONPatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := reg.ValidatingWebhookConfigurations().Patch(ctx, "v", types.JSONPatchType,
		[]byte(strings.ReplaceAll(string(patch), "CREATE", "UPDATE")), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until("after the patches", true, false)
	mine := metav1.ListOptions{LabelSelector: "set=mine"}
	all, err := reg.MutatingWebhookConfigurations().List(ctx, mine)
	if err != nil || len(all.Items) != 1 {
		t.Fatalf("list: %d, %v", len(all.Items), err)
	}
	if err := reg.MutatingWebhookConfigurations().DeleteCollection(ctx, metav1.DeleteOptions{}, mine); err != nil {
		t.Fatal(err)
	}
	if err := reg.ValidatingWebhookConfigurations().DeleteCollection(ctx, metav1.DeleteOptions{}, mine); err != nil {
		t.Fatal(err)
	}
	until("after the deletion", false, false)
}

// TestWebhooksLeaveTheirOwnAlone: no webhook changes a webhook configuration or keeps it from going.
func TestWebhooksLeaveTheirOwnAlone(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	hookServer := hookAt(t, func(path string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if path == "/deny" {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "everything stays"}}
		}
		if q.Resource.Resource == "configmaps" {
			return allow()
		}
		return patchOf(`[{"op":"add","path":"/metadata/labels","value":{"touched":"yes"}}]`)
	})
	everything := []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{"*"},
		Rule: registrationv1.Rule{
			APIGroups: []string{"admissionregistration.k8s.io"},
			APIVersions: []string{
				"*",
			},
			Resources: []string{"*"},
		},
	}}
	deny := validating("deny.example.com", hookServer.client("/deny"), everything)
	touch := mutating("touch.example.com", hookServer.client("/touch"), everything)
	deny.NamespaceSelector = nil
	touch.NamespaceSelector = nil
	validate(t, clientset, "deny", deny)
	mutate(t, clientset, "touch", touch)
	ctx := t.Context()
	reg := clientset.AdmissionregistrationV1()
	hookServer.take()
	made, err := reg.ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "dummy"},
		Webhooks: []registrationv1.ValidatingWebhook{
			validating("d.example.com", hookServer.client("/"), rule("CREATE", "nothings")),
		},
	}, metav1.CreateOptions{})
	if err != nil || len(made.Labels) != 0 {
		t.Errorf("validating: labels %v, %v", made.Labels, err)
	}
	also, err := reg.MutatingWebhookConfigurations().Create(ctx, &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "dummy"},
		Webhooks: []registrationv1.MutatingWebhook{
			mutating("d.example.com", hookServer.client("/"), rule("CREATE", "nothings")),
		},
	}, metav1.CreateOptions{})
	if err != nil || len(also.Labels) != 0 {
		t.Errorf("mutating: labels %v, %v", also.Labels, err)
	}
	policy, err := reg.ValidatingAdmissionPolicies().Create(ctx, &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "dummy"},
		Spec: registrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: matchRules("CREATE", "secrets"),
			Validations:      []registrationv1.Validation{{Expression: "true"}},
		},
	}, metav1.CreateOptions{})
	if err != nil || len(policy.Labels) != 0 {
		t.Errorf("policy: labels %v, %v", policy.Labels, err)
	}
	for what, err := range map[string]error{
		"validating": reg.ValidatingWebhookConfigurations().Delete(ctx, "dummy", metav1.DeleteOptions{}),
		"mutating":   reg.MutatingWebhookConfigurations().Delete(ctx, "dummy", metav1.DeleteOptions{}),
		"policy":     reg.ValidatingAdmissionPolicies().Delete(ctx, "dummy", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Errorf("delete %s: %v", what, err)
		}
	}
	if asked := hookServer.take(); len(asked) != 0 {
		t.Errorf("the webhooks were asked %d times", len(asked))
	}
}

// TestMatchConditions: they are kept as written, and those that are no expressions are refused.
func TestMatchConditions(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	ctx := t.Context()
	reg := clientset.AdmissionregistrationV1()
	hookServer := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if strings.Contains(string(q.Object.Raw), `"start"`) { // not the probe, which has no data
			return patchOf(`[{"op":"add","path":"/data/mutated","value":"yes"}]`)
		}
		return allow()
	})
	first := registrationv1.MatchCondition{
		Name:       "expression-1",
		Expression: "object.metadata.namespace == 'production'",
	}
	second := registrationv1.MatchCondition{Name: "expression-2", Expression: "object.metadata.namespace == 'staging'"}
	webhook := validating("v.example.com", hookServer.client("/"), rule("CREATE", "secrets"))
	webhook.MatchConditions = []registrationv1.MatchCondition{first}
	made, err := reg.ValidatingWebhookConfigurations().Create(ctx,
		&registrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{
				Name: "v",
			},
			Webhooks: []registrationv1.ValidatingWebhook{webhook},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Webhooks[0].MatchConditions = append(made.Webhooks[0].MatchConditions, second)
	if made, err = reg.ValidatingWebhookConfigurations().Update(ctx, made, metav1.UpdateOptions{}); err != nil ||
		!slices.Equal(made.Webhooks[0].MatchConditions, []registrationv1.MatchCondition{first, second}) {
		t.Errorf("validating: %v, %v", made, err)
	}
	m := mutating("m.example.com", hookServer.client("/"), rule("CREATE", "secrets"))
	m.MatchConditions = []registrationv1.MatchCondition{first}
	also, err := reg.MutatingWebhookConfigurations().Create(ctx,
		&registrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{
				Name: "m",
			},
			Webhooks: []registrationv1.MutatingWebhook{m},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	also.Webhooks[0].MatchConditions = append(also.Webhooks[0].MatchConditions, second)
	if also, err = reg.MutatingWebhookConfigurations().Update(ctx, also, metav1.UpdateOptions{}); err != nil ||
		!slices.Equal(also.Webhooks[0].MatchConditions, []registrationv1.MatchCondition{first, second}) {
		t.Errorf("mutating: %v, %v", also, err)
	}
	broken := []registrationv1.MatchCondition{{Name: "broken", Expression: "... [] bad expression"}}
	webhook.MatchConditions = broken
	m.MatchConditions = broken
	_, err = reg.ValidatingWebhookConfigurations().Create(ctx,
		&registrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{
				Name: "bad",
			},
			Webhooks: []registrationv1.ValidatingWebhook{webhook},
		}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "compilation failed") {
		t.Errorf("validating with a bad condition: got %v", err)
	}
	_, err = reg.MutatingWebhookConfigurations().Create(ctx,
		&registrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{
				Name: "bad",
			},
			Webhooks: []registrationv1.MutatingWebhook{m},
		}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "compilation failed") {
		t.Errorf("mutating with a bad condition: got %v", err)
	}
	all := mutating("all.example.com", hookServer.client("/"), rule("CREATE", "configmaps"))
	all.MatchConditions = []registrationv1.MatchCondition{
		{Name: "skip-me", Expression: "!has(object.metadata.name) || object.metadata.name != 'skip-me'"},
	}
	mutate(t, clientset, "all", all)
	for name, want := range map[string]string{"skip-me": "", "other": "yes"} {
		got, err := clientset.CoreV1().ConfigMaps("hooked").Create(ctx, config(name, nil), metav1.CreateOptions{})
		if err != nil || got.Data["mutated"] != want {
			t.Errorf("%s: got %v, %v, want mutated=%q", name, got.Data, err, want)
		}
	}
}
