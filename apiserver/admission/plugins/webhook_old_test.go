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
	"k8s.io/apimachinery/pkg/util/managedfields"

	"keelson/apiserver/servertest"
)

// TestOldReviews: a webhook is asked in the first version of its list that the server speaks.
func TestOldReviews(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	hookServer := hookAt(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{
			Allowed: true,
			Patch:   []byte(`[{"op":"add","path":"/metadata/annotations","value":{"old":"yes"}}]`),
		}
	})
	old := mutating("old.example.com", hookServer.client("/"), rule("CREATE", "configmaps"))
	old.AdmissionReviewVersions = []string{"v9", "v1beta1", "v1"}
	mutate(t, clientset, "m", old)
	hookServer.take()
	made, err := clientset.CoreV1().ConfigMaps("hooked").Create(t.Context(), config("c", nil), metav1.CreateOptions{})
	if err != nil || made.Annotations["old"] != "yes" {
		t.Errorf("got %v, %v; want the webhook's patch, whose type it does not have to name", made.Annotations, err)
	}
	hookServer.mu.Lock()
	defer hookServer.mu.Unlock()
	if len(hookServer.spoke) == 0 || hookServer.spoke[len(hookServer.spoke)-1] != "admission.k8s.io/v1beta1" {
		t.Errorf("asked in %q, want v1beta1", hookServer.spoke)
	}
}

// TestUnreadableOwners: field owners that a webhook makes unreadable are as they were before, with a warning.
func TestUnreadableOwners(t *testing.T) {
	_, c, warned := servertest.StartHooked(t)
	h := hookAt(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return patchOf(
			`[{"op":"remove","path":"/metadata/managedFields/0/fieldsType"},{"op":"add","path":"/metadata/annotations","value":{"touched":"yes"}}]`)
	})
	mutate(t, c, "m", mutating("m.example.com", h.client("/"), rule("CREATE,UPDATE", "configmaps")))
	warned.Take()
	ctx := t.Context()
	maps := c.CoreV1().ConfigMaps("hooked")
	obj, err := maps.Create(ctx, config("c", nil), metav1.CreateOptions{FieldManager: "me"})
	for _, what := range []string{"create", "update"} {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := managedfields.ValidateManagedFields(obj.ManagedFields); err != nil || len(obj.ManagedFields) == 0 ||
			obj.ManagedFields[0].Manager != "me" || obj.Annotations["touched"] != "yes" {
			t.Errorf("%s: owners %v, %v, annotations %v", what, obj.ManagedFields, err, obj.Annotations)
		}
		const want = ".metadata.managedFields was in an invalid state after admission; this could be caused by an " +
			"outdated mutating admission controller; please fix your requests: "
		if got := warned.Take(); !slices.ContainsFunc(got, func(w string) bool { return strings.HasPrefix(w, want) }) {
			t.Errorf("%s: warnings %q, want %s...", what, got, want)
		}
		obj.Data["more"] = what
		obj, err = maps.Update(ctx, obj, metav1.UpdateOptions{FieldManager: "me"})
	}
}

// TestRulesWithoutEffect: a configuration whose rules name what no webhook is asked about is warned of, and names that
// are kept for what comes from files are refused.
func TestRulesWithoutEffect(t *testing.T) {
	running := servertest.Start(t, nil)
	clientset, warned := running.Warned(t)
	hookServer := hookAt(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return allow()
	})
	rules := func(group string, resources ...string) []registrationv1.RuleWithOperations {
		out := rule("*", resources...)
		out[0].APIGroups = []string{group}
		return out
	}
	const suffix = " is excluded from admission webhooks; this rule will have no effect"
	for _, tt := range []struct {
		name  string
		rules []registrationv1.RuleWithOperations
		want  []string
	}{
		{
			"one", rules("authentication.k8s.io", "tokenreviews", "tokenreviews"),
			[]string{"webhooks[0].rules[0]: tokenreviews.authentication.k8s.io" + suffix},
		},
		{
			"second", append(rules("", "pods"), rules("authorization.k8s.io", "subjectaccessreviews", "others")...),
			[]string{"webhooks[0].rules[1]: subjectaccessreviews.authorization.k8s.io" + suffix},
		},
		{"wild", append(rules("*", "tokenreviews"), rules("authentication.k8s.io", "*")...), nil},
	} {
		warned.Take()
		_, err := clientset.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(
			t.Context(), &registrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: tt.name},
				Webhooks: []registrationv1.ValidatingWebhook{
					validating("w.example.com", hookServer.client("/"), tt.rules),
				},
			}, metav1.CreateOptions{})
		if got := warned.Take(); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("validating, %s: warnings %q, %v, want %q", tt.name, got, err, tt.want)
		}
		_, err = clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(
			t.Context(), &registrationv1.MutatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: tt.name},
				Webhooks: []registrationv1.MutatingWebhook{
					mutating("w.example.com", hookServer.client("/"), tt.rules),
				},
			}, metav1.CreateOptions{})
		if got := warned.Take(); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("mutating, %s: warnings %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
	for resource, k := range registrations {
		obj := servertest.Object("admissionregistration.k8s.io/v1", k.kind, "", "mine.static.k8s.io", unstructuredCopy(k.body))
		body, err := obj.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		running.Call(t, "POST", "/apis/admissionregistration.k8s.io/v1/"+resource, string(body), "Content-Type",
			"application/json").Wants(t, resource, 422,
			`metadata.name: Invalid value: "mine.static.k8s.io": names ending with ".static.k8s.io" are reserved for static manifest-based configurations and cannot be managed via the API`)
	}
}

// TestConnectionsAreJudgedFirst: admission is asked about a connection before it is opened, whatever its method
// and whether there is something to connect to; and of a binding under the name by which it was made.
func TestConnectionsAreJudgedFirst(t *testing.T) {
	running, c, _ := servertest.StartHooked(t)
	hookServer := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{
			Message: string(q.Operation) + " " + q.Resource.Resource + " " + q.SubResource + " " + q.Name,
		}}
	})
	streams := rule("CONNECT", "pods/*", "services/*", "nodes/*")
	all := validating("all.example.com", hookServer.client("/"),
		append(streams, rule("CREATE", "bindings", "pods/binding", "pods/eviction")...))
	all.NamespaceSelector = nil
	validate(t, c, "v", all)
	const ns = "/api/v1/namespaces/hooked/"
	for _, tt := range []struct{ method, path, body, want string }{
		{"POST", ns + "pods/none/exec", "", "CONNECT pods exec none"},
		{"GET", ns + "pods/none/attach", "", "CONNECT pods attach none"},
		{"GET", ns + "pods/none/portforward", "", "CONNECT pods portforward none"},
		{"PATCH", ns + "pods/none/proxy", "", "CONNECT pods proxy none"},
		{"PATCH", ns + "services/none/proxy", "", "CONNECT services proxy none"},
		{"PATCH", "/api/v1/nodes/none/proxy", "", "CONNECT nodes proxy none"},
		{
			"POST", ns + "bindings",
			`{"apiVersion":"v1","kind":"Binding","metadata":{"name":"none"},"target":{"kind":"Node","name":"n"}}`,
			"CREATE bindings  none",
		},
		{
			"POST", ns + "pods/none/binding",
			`{"apiVersion":"v1","kind":"Binding","metadata":{"name":"none"},"target":{"kind":"Node","name":"n"}}`,
			"CREATE pods binding none",
		},
		{
			"POST", ns + "pods/none/eviction",
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"none"}}`, "CREATE pods eviction none",
		},
	} {
		head := []string{}
		if tt.body != "" {
			head = append(head, "Content-Type", "application/json")
		}
		running.Call(t, tt.method, tt.path, tt.body, head...).Wants(t, tt.method+" "+tt.path, 400,
			"denied the request: "+tt.want)
	}
	hookServer.take()
	for _, method := range []string{"HEAD", "OPTIONS"} {
		running.Call(t, method, "/api/v1/nodes/none/proxy", "")
		if asked := hookServer.take(); len(asked) != 1 || asked[0].Operation != "CONNECT" {
			t.Errorf("%s: asked %d times, want once, of a connection", method, len(asked))
		}
	}
	running.Call(t, "GET", ns+"bindings/none", "").Wants(t, "a named binding", 404,
		"the server could not find the requested resource")
	for _, stream := range []string{"exec", "attach", "portforward"} {
		running.Call(t, "PUT", ns+"pods/none/"+stream, "").Wants(t, "PUT "+stream, 405,
			"the server does not allow this method on the requested resource")
	}
}

// TestPoliciesSeeWebhooks: policies judge the configurations of webhooks, as webhooks do not.
func TestPoliciesSeeWebhooks(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	m := matchRules("CREATE", "validatingwebhookconfigurations")
	m.ResourceRules[0].APIGroups = []string{"admissionregistration.k8s.io"}
	enforce(t, clientset, "none", registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: m,
		Validations: []registrationv1.Validation{
			{
				Expression: "request.resource.resource == 'configmaps' || object.metadata.name.startsWith('good')",
				Message:    "not good",
			},
		},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ValidationActions: []registrationv1.ValidationAction{
		registrationv1.Deny,
	}})
	for name, refused := range map[string]bool{"good": false, "bad": true} {
		_, err := clientset.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(
			t.Context(), &registrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Webhooks:   []registrationv1.ValidatingWebhook{},
			}, metav1.CreateOptions{})
		if apierrors.IsInvalid(err) != refused || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
