// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
)

// TestNotes: the audit event names the webhook that changed the object and, at levels with objects, what was changed.
func TestNotes(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
			return
		}
		kind := admissionv1.PatchTypeJSONPatch
		patch := `[{"value": {"a":"b"}, "path": "/metadata/labels", "op": "add"}]`
		if review.Request.Name == "dear" {
			patch = `[{"op":"add","path":"/status/capacity","value":{"cpu":"1e2880888"}}]`
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID:       review.Request.UID,
			Allowed:   true,
			PatchType: &kind,
			Patch:     []byte(patch),
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer server.Close()
	none := registrationv1.SideEffectClassNone
	rules := []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{"*"},
		Rule:       registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
	}}
	mutating := NewMutating(Config{})
	mutating.Set(&registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name:                    "w.example.com",
			Rules:                   rules,
			SideEffects:             &none,
			AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector:       &metav1.LabelSelector{},
			ObjectSelector:          &metav1.LabelSelector{},
			ClientConfig: registrationv1.WebhookClientConfig{
				URL:      &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
		}},
	})
	defer mutating.Remove(&registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "c"}})
	const mutated = `{"configuration":"c","webhook":"w.example.com","mutated":true}`
	for _, tt := range []struct {
		bodies bool
		want   map[string]string
	}{
		{false, map[string]string{"mutation.webhook.admission.k8s.io/round_0_index_0": mutated}},
		{true, map[string]string{
			"mutation.webhook.admission.k8s.io/round_0_index_0": mutated,
			"patch.webhook.admission.k8s.io/round_0_index_0":    `{"configuration":"c","webhook":"w.example.com","patch":[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}],"patchType":"JSONPatch"}`,
		}},
	} {
		notes := map[string]string{}
		r := &admission.Request{
			Operation:   admission.Create,
			Resource:    corev1.SchemeGroupVersion.WithResource("nodes"),
			Kind:        corev1.SchemeGroupVersion.WithKind("Node"),
			Name:        "n",
			Object:      &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
			AuditBodies: tt.bodies,
			Annotate:    func(key, value string) { notes[key] = value },
		}
		if err := mutating.Admit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(notes, tt.want) {
			t.Errorf("bodies %v: got %v, want %v", tt.bodies, notes, tt.want)
		}
	}

	// What a webhook adds is bounded as what a client sends.
	r := &admission.Request{
		Operation: admission.Create,
		Resource:  corev1.SchemeGroupVersion.WithResource("nodes"),
		Kind:      corev1.SchemeGroupVersion.WithKind("Node"),
		Name:      "dear",
		Object:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "dear"}},
	}
	if err := mutating.Admit(t.Context(), r); err == nil || !strings.Contains(err.Error(), "quantities must match") {
		t.Errorf("a quantity of millions of digits: %v", err)
	}
}
