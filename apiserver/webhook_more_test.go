// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// TestWebhookConfigurations: configurations can be listed, patched, updated and deleted by collection, and what they say holds at once.
func TestWebhookConfigurations(t *testing.T) {
	_, c, _ := hooked(t)
	h := hookAt(t, func(path string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		switch {
		case path == "/mutate":
			return patchOf(`[{"op":"add","path":"/data/mutated","value":"yes"}]`)
		case q.Name == "bad":
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "no"}}
		}
		return allow()
	})
	ctx, reg := t.Context(), c.AdmissionregistrationV1()
	kind := metav1.ObjectMeta{Labels: map[string]string{"set": "mine"}}
	named := func(name string) metav1.ObjectMeta { m := *kind.DeepCopy(); m.Name = name; return m }
	if _, err := reg.MutatingWebhookConfigurations().Create(ctx, &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: named("m"), Webhooks: []registrationv1.MutatingWebhook{mutating("m.example.com", h.client("/mutate"), rule("CREATE", "configmaps"))},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := reg.ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: named("v"), Webhooks: []registrationv1.ValidatingWebhook{validating("v.example.com", h.client("/judge"), rule("CREATE", "configmaps"))},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	try := func(name string) (mutated, denied bool) {
		t.Helper()
		m, err := c.CoreV1().ConfigMaps("hooked").Create(ctx, config(name, nil), metav1.CreateOptions{DryRun: []string{"All"}})
		if err != nil && !strings.Contains(err.Error(), "denied the request") {
			t.Fatal(err)
		}
		return err == nil && m.Data["mutated"] != "", err != nil
	}
	until := func(what string, mutated, denied bool) {
		t.Helper()
		eventually(t, what, func() string {
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
	if _, err := reg.MutatingWebhookConfigurations().Patch(ctx, "m", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := reg.ValidatingWebhookConfigurations().Patch(ctx, "v", types.JSONPatchType, []byte(strings.ReplaceAll(string(patch), "CREATE", "UPDATE")), metav1.PatchOptions{}); err != nil {
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
	_, c, _ := hooked(t)
	h := hookAt(t, func(path string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
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
		Rule:       registrationv1.Rule{APIGroups: []string{"admissionregistration.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
	}}
	deny, touch := validating("deny.example.com", h.client("/deny"), everything), mutating("touch.example.com", h.client("/touch"), everything)
	deny.NamespaceSelector, touch.NamespaceSelector = nil, nil
	validate(t, c, "deny", deny)
	mutate(t, c, "touch", touch)
	ctx, reg := t.Context(), c.AdmissionregistrationV1()
	h.take()
	made, err := reg.ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "dummy"}, Webhooks: []registrationv1.ValidatingWebhook{validating("d.example.com", h.client("/"), rule("CREATE", "nothings"))},
	}, metav1.CreateOptions{})
	if err != nil || len(made.Labels) != 0 {
		t.Errorf("validating: labels %v, %v", made.Labels, err)
	}
	also, err := reg.MutatingWebhookConfigurations().Create(ctx, &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "dummy"}, Webhooks: []registrationv1.MutatingWebhook{mutating("d.example.com", h.client("/"), rule("CREATE", "nothings"))},
	}, metav1.CreateOptions{})
	if err != nil || len(also.Labels) != 0 {
		t.Errorf("mutating: labels %v, %v", also.Labels, err)
	}
	policy, err := reg.ValidatingAdmissionPolicies().Create(ctx, &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "dummy"}, Spec: registrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: matchRules("CREATE", "secrets"), Validations: []registrationv1.Validation{{Expression: "true"}},
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
	if asked := h.take(); len(asked) != 0 {
		t.Errorf("the webhooks were asked %d times", len(asked))
	}
}

// TestMatchConditions: they are kept as written, and those that are no expressions are refused.
func TestMatchConditions(t *testing.T) {
	_, c, _ := hooked(t)
	ctx, reg := t.Context(), c.AdmissionregistrationV1()
	h := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if strings.Contains(string(q.Object.Raw), `"start"`) { // not the probe, which has no data
			return patchOf(`[{"op":"add","path":"/data/mutated","value":"yes"}]`)
		}
		return allow()
	})
	first, second := registrationv1.MatchCondition{Name: "expression-1", Expression: "object.metadata.namespace == 'production'"}, registrationv1.MatchCondition{Name: "expression-2", Expression: "object.metadata.namespace == 'staging'"}
	v := validating("v.example.com", h.client("/"), rule("CREATE", "secrets"))
	v.MatchConditions = []registrationv1.MatchCondition{first}
	made, err := reg.ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Webhooks: []registrationv1.ValidatingWebhook{v}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Webhooks[0].MatchConditions = append(made.Webhooks[0].MatchConditions, second)
	if made, err = reg.ValidatingWebhookConfigurations().Update(ctx, made, metav1.UpdateOptions{}); err != nil || !slices.Equal(made.Webhooks[0].MatchConditions, []registrationv1.MatchCondition{first, second}) {
		t.Errorf("validating: %v, %v", made, err)
	}
	m := mutating("m.example.com", h.client("/"), rule("CREATE", "secrets"))
	m.MatchConditions = []registrationv1.MatchCondition{first}
	also, err := reg.MutatingWebhookConfigurations().Create(ctx, &registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Webhooks: []registrationv1.MutatingWebhook{m}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	also.Webhooks[0].MatchConditions = append(also.Webhooks[0].MatchConditions, second)
	if also, err = reg.MutatingWebhookConfigurations().Update(ctx, also, metav1.UpdateOptions{}); err != nil || !slices.Equal(also.Webhooks[0].MatchConditions, []registrationv1.MatchCondition{first, second}) {
		t.Errorf("mutating: %v, %v", also, err)
	}
	broken := []registrationv1.MatchCondition{{Name: "broken", Expression: "... [] bad expression"}}
	v.MatchConditions, m.MatchConditions = broken, broken
	_, err = reg.ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Webhooks: []registrationv1.ValidatingWebhook{v}}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "compilation failed") {
		t.Errorf("validating with a bad condition: got %v", err)
	}
	_, err = reg.MutatingWebhookConfigurations().Create(ctx, &registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Webhooks: []registrationv1.MutatingWebhook{m}}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "compilation failed") {
		t.Errorf("mutating with a bad condition: got %v", err)
	}
	all := mutating("all.example.com", h.client("/"), rule("CREATE", "configmaps"))
	all.MatchConditions = []registrationv1.MatchCondition{{Name: "skip-me", Expression: "!has(object.metadata.name) || object.metadata.name != 'skip-me'"}}
	mutate(t, c, "all", all)
	for name, want := range map[string]string{"skip-me": "", "other": "yes"} {
		got, err := c.CoreV1().ConfigMaps("hooked").Create(ctx, config(name, nil), metav1.CreateOptions{})
		if err != nil || got.Data["mutated"] != want {
			t.Errorf("%s: got %v, %v, want mutated=%q", name, got.Data, err, want)
		}
	}
}

// TestWebhookGuardsCustomResources: definitions and custom resources can be kept from being made, changed and deleted.
func TestWebhookGuardsCustomResources(t *testing.T) {
	r, cs, _ := hooked(t)
	dyn, err := dynamic.NewForConfig(r.rest)
	if err != nil {
		t.Fatal(err)
	}
	c := &custom{r, t, dyn}
	c.define(definition("widgets", "Widget", "{type: object, properties: {data: {type: object, additionalProperties: {type: string}}}}"))
	h := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		raw := string(q.Object.Raw) + string(q.OldObject.Raw)
		if q.Resource.Resource == "customresourcedefinitions" && strings.Contains(raw, `"webhook-e2e-test":"webhook-disallow"`) {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "the crd contains unwanted label"}}
		}
		switch {
		case q.Operation == admissionv1.Delete && !strings.Contains(raw, `"allow-delete":"yes"`):
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "the custom resource cannot be deleted"}}
		case q.Operation != admissionv1.Delete && strings.Contains(string(q.Object.Raw), `"webhook-e2e-test":"webhook-disallow"`):
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "the custom resource contains unwanted data"}}
		}
		return allow()
	})
	of := func(group, ops, resource string) []registrationv1.RuleWithOperations {
		rules := rule(ops, resource)
		rules[0].APIGroups = []string{group}
		return rules
	}
	crds := validating("crds.example.com", h.client("/"), of("apiextensions.k8s.io", "CREATE", "customresourcedefinitions"))
	crds.NamespaceSelector = nil
	validate(t, cs, "v", validating("widgets.example.com", h.client("/"), of("example.com", "CREATE,UPDATE,DELETE", "widgets")), crds)
	ctx, in := t.Context(), c.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("hooked")
	const unwanted = "the custom resource contains unwanted data"
	bad := object("example.com/v1", "Widget", "hooked", "bad", map[string]any{"data": map[string]any{"webhook-e2e-test": "webhook-disallow"}})
	if _, err := in.Create(ctx, bad, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), unwanted) {
		t.Errorf("create: got %v", err)
	}
	good := object("example.com/v1", "Widget", "hooked", "good", map[string]any{"data": map[string]any{"a": "b"}})
	if _, err := in.Create(ctx, good, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Patch(ctx, "good", types.MergePatchType, []byte(`{"data":{"webhook-e2e-test":"webhook-disallow"}}`), metav1.PatchOptions{}); err == nil || !strings.Contains(err.Error(), unwanted) {
		t.Errorf("update: got %v", err)
	}
	if err := in.Delete(ctx, "good", metav1.DeleteOptions{}); err == nil || !strings.Contains(err.Error(), "the custom resource cannot be deleted") {
		t.Errorf("delete: got %v", err)
	}
	if _, err := in.Patch(ctx, "good", types.MergePatchType, []byte(`{"data":{"allow-delete":"yes"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := in.Delete(ctx, "good", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete of what may go: %v", err)
	}
	crd := definition("gadgets", "Gadget", "{type: object}")
	crd.Labels = map[string]string{"webhook-e2e-test": "webhook-disallow"}
	if _, err := c.Resource(crdGVR).Create(ctx, toUnstructured(t, crd), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "the crd contains unwanted label") {
		t.Errorf("definition: got %v", err)
	}
}

// TestWebhookTimeouts: a webhook that takes longer than it may fails the request, or is passed over, as its policy says.
func TestWebhookTimeouts(t *testing.T) {
	_, c, _ := hooked(t)
	release := make(chan struct{})
	h := hookAt(t, func(path string, _ *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if path == "/slow" {
			<-release
		}
		return allow()
	})
	t.Cleanup(func() { close(release) })
	second, most, ignore := int32(1), int32(30), registrationv1.Ignore
	hook := func(label, path string, timeout *int32, policy *registrationv1.FailurePolicyType) registrationv1.MutatingWebhook {
		w := mutating(label+".example.com", h.client(path), rule("CREATE", "configmaps"))
		w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"case": label}}
		w.TimeoutSeconds, w.FailurePolicy = timeout, policy
		return w
	}
	mutate(t, c, "m", hook("fails", "/slow", &second, nil), hook("passes", "/slow", &second, &ignore), hook("waits", "/", &most, nil), hook("usual", "/", nil, nil))
	for label, want := range map[string]string{
		"fails":  `failed calling webhook "fails.example.com": failed to call webhook: Post "` + h.URL + `/slow?timeout=1s": context deadline exceeded`,
		"passes": "", "waits": "", "usual": "",
	} {
		_, err := c.CoreV1().ConfigMaps("hooked").Create(t.Context(), config("c-"+label, map[string]string{"case": label}), metav1.CreateOptions{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", label, err, want)
		}
	}
	m, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "m", metav1.GetOptions{})
	if err != nil || *m.Webhooks[3].TimeoutSeconds != 10 {
		t.Errorf("the usual timeout: got %v, %v, want 10", m.Webhooks[3].TimeoutSeconds, err)
	}
}

// TestWarningsOfEveryVerb: what a webhook or a policy warns of reaches the client, whatever it asked for.
func TestWarningsOfEveryVerb(t *testing.T) {
	_, c, warned := hooked(t)
	h := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return allow("webhook: " + string(q.Operation) + " " + q.Name)
	})
	validate(t, c, "v", validating("warn.example.com", h.client("/"), rule("*", "secrets", "pods/*")))
	m := matchRules("*", "secrets")
	for i := range m.ResourceRules {
		m.ResourceRules[i].Operations = []registrationv1.OperationType{"CREATE", "UPDATE", "DELETE"}
	}
	enforce(t, c, "warns", registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: m, Validations: []registrationv1.Validation{{Expression: "request.resource.resource != 'secrets'", MessageExpression: "'policy: ' + request.operation + ' ' + (has(request.name) ? request.name : '')"}},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ValidationActions: []registrationv1.ValidationAction{registrationv1.Warn}})
	ctx, secrets := t.Context(), c.CoreV1().Secrets("hooked")
	expect := func(what string, want ...string) {
		t.Helper()
		// The rule that shows that the policy is in force fails where there is no object.
		got := slices.DeleteFunc(warned.take(), func(text string) bool { return strings.Contains(text, "['probe']") })
		for i, text := range got {
			if _, after, ok := strings.Cut(text, "'warns-binding': "); ok {
				got[i] = after
			}
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "b"}}}
	}
	eventually(t, "the policy", func() string {
		warned.take()
		_, err := secrets.Create(ctx, secret("probe"), metav1.CreateOptions{DryRun: []string{"All"}})
		must(err)
		if len(warned.take()) < 2 {
			return "it does not warn"
		}
		return ""
	})
	made, err := secrets.Create(ctx, secret("a"), metav1.CreateOptions{})
	must(err)
	expect("create", "webhook: CREATE a", "policy: CREATE a")
	made.Labels["c"] = "d"
	_, err = secrets.Update(ctx, made, metav1.UpdateOptions{})
	must(err)
	expect("update", "webhook: UPDATE a", "policy: UPDATE a")
	_, err = secrets.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"e":"f"}}}`), metav1.PatchOptions{})
	must(err)
	expect("patch", "webhook: UPDATE a", "policy: UPDATE a")
	_, err = secrets.Patch(ctx, "b", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b","labels":{"a":"b"}}}`), metav1.PatchOptions{FieldManager: "me"})
	must(err)
	expect("apply", "webhook: CREATE b", "policy: CREATE b")
	_, err = secrets.Create(ctx, secret("c"), metav1.CreateOptions{})
	must(err)
	warned.take()
	must(secrets.Delete(ctx, "c", metav1.DeleteOptions{}))
	expect("delete", "webhook: DELETE c", "policy: DELETE c")
	must(secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "a=b"}))
	expect("deletecollection", "webhook: DELETE ", "policy: DELETE") // of a collection no object is named
	_, err = c.CoreV1().Pods("hooked").Create(ctx, podIn("hooked", "p"), metav1.CreateOptions{})
	must(err)
	warned.take()
	_, err = c.CoreV1().Pods("hooked").UpdateStatus(ctx, podIn("hooked", "p"), metav1.UpdateOptions{})
	must(err)
	expect("status", "webhook: UPDATE p")
	must(c.CoreV1().Pods("hooked").Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{}))
	expect("binding", "webhook: CREATE p")
}
