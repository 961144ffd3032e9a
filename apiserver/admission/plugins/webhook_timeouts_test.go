// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// TestWebhookTimeouts: a webhook that takes longer than it may fails the request, or is passed over, as its policy
// says.
func TestWebhookTimeouts(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	release := make(chan struct{})
	hookServer := hookAt(t, func(path string, _ *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if path == "/slow" {
			<-release
		}
		return allow()
	})
	t.Cleanup(func() { close(release) })
	second := int32(1)
	most := int32(30)
	ignore := registrationv1.Ignore
	hook := func(
		label, path string, timeout *int32, policy *registrationv1.FailurePolicyType,
	) registrationv1.MutatingWebhook {
		w := mutating(label+".example.com", hookServer.client(path), rule("CREATE", "configmaps"))
		w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"case": label}}
		w.TimeoutSeconds = timeout
		w.FailurePolicy = policy
		return w
	}
	mutate(t, clientset, "m", hook("fails", "/slow", &second, nil), hook("passes", "/slow", &second, &ignore),
		hook("waits", "/", &most, nil), hook("usual", "/", nil, nil))
	for label, want := range map[string]string{
		"fails": `failed calling webhook "fails.example.com": failed to call webhook: Post "` + hookServer.URL +
			`/slow?timeout=1s": context deadline exceeded`,
		"passes": "",
		"waits":  "",
		"usual":  "",
	} {
		_, err := clientset.CoreV1().ConfigMaps("hooked").Create(t.Context(),
			config("c-"+label, map[string]string{"case": label}), metav1.CreateOptions{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", label, err, want)
		}
	}
	m, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "m",
		metav1.GetOptions{})
	if err != nil || *m.Webhooks[3].TimeoutSeconds != 10 {
		t.Errorf("the usual timeout: got %v, %v, want 10", m.Webhooks[3].TimeoutSeconds, err)
	}
}

// TestNoWarningsOfAStatus: a controller that writes a status does not read again what is odd about the specification.
func TestNoWarningsOfAStatus(t *testing.T) {
	running := servertest.Start(t, nil)
	const path = "/apis/batch/v1/namespaces/default/cronjobs"
	const cronJob = `{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"a"},"spec":{"schedule":"0 0 * * *",
		"jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i",
		"env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}]}}}}}}`
	made := running.Call(t, "POST", path, cronJob)
	if made.Code != 201 || len(made.Header.Values("Warning")) == 0 {
		t.Fatalf("a create: %d with warnings %v: %s", made.Code, made.Header.Values("Warning"), made.Body)
	}
	status := running.Call(t, "PATCH", path+"/a/status", `{"status":{"lastScheduleTime":"2026-01-01T00:00:00Z"}}`,
		"Content-Type", servertest.MergePatch)
	if status.Code != 200 || len(status.Header.Values("Warning")) > 0 {
		t.Errorf("a status: %d with warnings %v", status.Code, status.Header.Values("Warning"))
	}
}

// TestWarningsOfEveryVerb: what a webhook or a policy warns of reaches the client, whatever it asked for.
func TestWarningsOfEveryVerb(t *testing.T) {
	_, clientset, warned := servertest.StartHooked(t)
	h := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return allow("webhook: " + string(q.Operation) + " " + q.Name)
	})
	validate(t, clientset, "v", validating("warn.example.com", h.client("/"), rule("*", "secrets", "pods/*")))
	m := matchRules("*", "secrets")
	for i := range m.ResourceRules {
		m.ResourceRules[i].Operations = []registrationv1.OperationType{"CREATE", "UPDATE", "DELETE"}
	}
	enforce(t, clientset, "warns", registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: m,
		Validations: []registrationv1.Validation{
			{
				Expression:        "request.resource.resource != 'secrets'",
				MessageExpression: "'policy: ' + request.operation + ' ' + (has(request.name) ? request.name : '')",
			},
		},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ValidationActions: []registrationv1.ValidationAction{
		registrationv1.Warn,
	}})
	ctx := t.Context()
	secrets := clientset.CoreV1().Secrets("hooked")
	expect := func(what string, want ...string) {
		t.Helper()
		// The rule that shows that the policy is in force fails where there is no object.
		got := slices.DeleteFunc(warned.Take(), func(text string) bool { return strings.Contains(text, "['probe']") })
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
	waittest.Right(t, "the policy", func() string {
		warned.Take()
		_, err := secrets.Create(ctx, secret("probe"), metav1.CreateOptions{DryRun: []string{"All"}})
		must(err)
		if len(warned.Take()) < 2 {
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
	_, err = secrets.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"e":"f"}}}`),
		metav1.PatchOptions{})
	must(err)
	expect("patch", "webhook: UPDATE a", "policy: UPDATE a")
	_, err = secrets.Patch(ctx, "b", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b","labels":{"a":"b"}}}`), metav1.PatchOptions{
			FieldManager: "me",
		})
	must(err)
	expect("apply", "webhook: CREATE b", "policy: CREATE b")
	_, err = secrets.Create(ctx, secret("c"), metav1.CreateOptions{})
	must(err)
	warned.Take()
	must(secrets.Delete(ctx, "c", metav1.DeleteOptions{}))
	expect("delete", "webhook: DELETE c", "policy: DELETE c")
	must(secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "a=b"}))
	expect("deletecollection", "webhook: DELETE ", "policy: DELETE") // of a collection no object is named
	_, err = clientset.CoreV1().Pods("hooked").Create(ctx, servertest.PodIn("hooked", "p"), metav1.CreateOptions{})
	must(err)
	warned.Take()
	_, err = clientset.CoreV1().Pods("hooked").UpdateStatus(ctx, servertest.PodIn("hooked", "p"), metav1.UpdateOptions{})
	must(err)
	expect("status", "webhook: UPDATE p")
	must(clientset.CoreV1().Pods("hooked").Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p",
		},
		Target: corev1.ObjectReference{Kind: "Node", Name: "n"},
	}, metav1.CreateOptions{}))
	expect("binding", "webhook: CREATE p")
}
