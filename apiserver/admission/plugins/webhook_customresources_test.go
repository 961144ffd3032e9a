// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"keelson/apiserver/servertest"
)

// TestWebhookGuardsCustomResources: definitions and custom resources can be kept from being made, changed and deleted.
func TestWebhookGuardsCustomResources(t *testing.T) {
	r, cs, _ := servertest.StartHooked(t)
	dyn, err := dynamic.NewForConfig(r.Rest)
	if err != nil {
		t.Fatal(err)
	}
	c := &servertest.Custom{Running: r, T: t, Interface: dyn}
	c.Define(servertest.Definition("widgets", "Widget",
		"{type: object, properties: {data: {type: object, additionalProperties: {type: string}}}}"))
	hookServer := hookAt(t, func(_ string, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		raw := string(request.Object.Raw) + string(request.OldObject.Raw)
		if request.Resource.Resource == "customresourcedefinitions" &&
			strings.Contains(raw, `"webhook-e2e-test":"webhook-disallow"`) {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "the crd contains unwanted label"}}
		}
		switch {
		case request.Operation == admissionv1.Delete && !strings.Contains(raw, `"allow-delete":"yes"`):
			return &admissionv1.AdmissionResponse{
				Result: &metav1.Status{Message: "the custom resource cannot be deleted"},
			}
		case request.Operation != admissionv1.Delete && strings.Contains(string(request.Object.Raw),
			`"webhook-e2e-test":"webhook-disallow"`):
			return &admissionv1.AdmissionResponse{
				Result: &metav1.Status{Message: "the custom resource contains unwanted data"},
			}
		}
		return allow()
	})
	of := func(group, ops, resource string) []registrationv1.RuleWithOperations {
		rules := rule(ops, resource)
		rules[0].APIGroups = []string{group}
		return rules
	}
	crds := validating("crds.example.com", hookServer.client("/"),
		of("apiextensions.k8s.io", "CREATE", "customresourcedefinitions"))
	crds.NamespaceSelector = nil
	validate(t, cs, "v",
		validating("widgets.example.com", hookServer.client("/"),
			of("example.com", "CREATE,UPDATE,DELETE", "widgets")), crds)
	ctx := t.Context()
	in := c.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace(
		"hooked")
	const unwanted = "the custom resource contains unwanted data"
	bad := servertest.Object("example.com/v1", "Widget", "hooked", "bad", map[string]any{
		"data": map[string]any{"webhook-e2e-test": "webhook-disallow"},
	})
	if _, err := in.Create(ctx, bad, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), unwanted) {
		t.Errorf("create: got %v", err)
	}
	good := servertest.Object("example.com/v1", "Widget", "hooked", "good", map[string]any{"data": map[string]any{"a": "b"}})
	if _, err := in.Create(ctx, good, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Patch(ctx, "good", types.MergePatchType,
		[]byte(`{"data":{"webhook-e2e-test":"webhook-disallow"}}`), metav1.PatchOptions{}); err == nil ||
		!strings.Contains(err.Error(), unwanted) {
		t.Errorf("update: got %v", err)
	}
	if err := in.Delete(ctx, "good", metav1.DeleteOptions{}); err == nil ||
		!strings.Contains(err.Error(), "the custom resource cannot be deleted") {
		t.Errorf("delete: got %v", err)
	}
	if _, err := in.Patch(ctx, "good", types.MergePatchType, []byte(`{"data":{"allow-delete":"yes"}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := in.Delete(ctx, "good", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete of what may go: %v", err)
	}
	crd := servertest.Definition("gadgets", "Gadget", "{type: object}")
	crd.Labels = map[string]string{"webhook-e2e-test": "webhook-disallow"}
	if _, err := c.Resource(servertest.DefinitionsGVR).Create(ctx, servertest.ToUnstructured(t, crd), metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), "the crd contains unwanted label") {
		t.Errorf("definition: got %v", err)
	}
}
