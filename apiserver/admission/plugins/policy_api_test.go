// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"keelson/apiserver/servertest"
)

// registrations are the kinds of admissionregistration.k8s.io/v1 with the least that each needs.
var registrations = map[string]struct {
	kind string
	body map[string]any
}{
	"validatingadmissionpolicies": {"ValidatingAdmissionPolicy", map[string]any{"spec": map[string]any{
		"matchConstraints": onPods,
		"validations":      []any{map[string]any{"expression": "true"}},
	}}},
	"validatingadmissionpolicybindings": {"ValidatingAdmissionPolicyBinding", map[string]any{"spec": map[string]any{
		"policyName":        "nothing",
		"validationActions": []any{"Deny"},
	}}},
	"mutatingadmissionpolicies": {"MutatingAdmissionPolicy", map[string]any{"spec": map[string]any{
		"matchConstraints":   onPods,
		"reinvocationPolicy": "Never",
		"mutations": []any{map[string]any{
			"patchType": "JSONPatch",
			"jsonPatch": map[string]any{"expression": "[JSONPatch{op: 'test', path: '/metadata/name', value: 'x'}]"},
		}},
	}}},
	"mutatingadmissionpolicybindings": {
		"MutatingAdmissionPolicyBinding", map[string]any{"spec": map[string]any{"policyName": "nothing"}},
	},
	"validatingwebhookconfigurations": {"ValidatingWebhookConfiguration", map[string]any{"webhooks": []any{}}},
	"mutatingwebhookconfigurations":   {"MutatingWebhookConfiguration", map[string]any{"webhooks": []any{}}},
}

var onPods = map[string]any{"resourceRules": []any{map[string]any{
	"apiGroups":   []any{""},
	"apiVersions": []any{"v1"},
	"operations":  []any{"CREATE"},
	"resources":   []any{"pods"},
}}}

// TestRegistrationAPI: each kind of the group is in discovery and can be made, read, listed, watched, patched, updated
// and deleted.
func TestRegistrationAPI(t *testing.T) {
	r := servertest.StartAdmitting(t)
	dyn, err := dynamic.NewForConfig(r.Rest)
	if err != nil {
		t.Fatal(err)
	}
	served, err := r.Clients(t).Discovery().ServerResourcesForGroupVersion("admissionregistration.k8s.io/v1")
	if err != nil {
		t.Fatal(err)
	}
	for resource, k := range registrations {
		t.Run(resource, func(t *testing.T) {
			if !slices.ContainsFunc(served.APIResources, func(a metav1.APIResource) bool {
				return a.Name == resource && a.Kind == k.kind && !a.Namespaced &&
					slices.Contains(a.Verbs, "deletecollection")
			}) {
				t.Error("not in discovery")
			}
			registrationLife(t, dyn.Resource(schema.GroupVersionResource{
				Group:    "admissionregistration.k8s.io",
				Version:  "v1",
				Resource: resource,
			}), k.kind, k.body)
		})
	}
	t.Run("status", func(t *testing.T) {
		policyStatus(t, dyn.Resource(schema.GroupVersionResource{
			Group:    "admissionregistration.k8s.io",
			Version:  "v1",
			Resource: "validatingadmissionpolicies",
		}))
	})
}

func registrationLife(t *testing.T, cs dynamic.NamespaceableResourceInterface, kind string, body map[string]any) {
	ctx := t.Context()
	set := metav1.ListOptions{LabelSelector: "set=life"}
	w, err := cs.Watch(ctx, set)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func(want watch.EventType, name string) {
		t.Helper()
		select {
		case e := <-w.ResultChan():
			if o, ok := e.Object.(*unstructured.Unstructured); e.Type != want || !ok || o.GetName() != name {
				t.Errorf("watch: got %s of %v, want %s of %s", e.Type, e.Object, want, name)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("watch: no %s of %s", want, name)
		}
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for _, name := range []string{"one", "two", "three"} {
		obj := servertest.Object("admissionregistration.k8s.io/v1", kind, "", name, unstructuredCopy(body))
		obj.SetLabels(map[string]string{"set": "life"})
		made, err := cs.Create(ctx, obj, metav1.CreateOptions{})
		must("create", err)
		if made.GetUID() == "" || made.GetGeneration() != 1 {
			t.Errorf("made: uid %q, generation %d", made.GetUID(), made.GetGeneration())
		}
		next(watch.Added, name)
	}
	list, err := cs.List(ctx, set)
	must("list", err)
	if len(list.Items) != 3 {
		t.Errorf("listed %d, want 3", len(list.Items))
	}
	patched, err := cs.Patch(ctx, "one", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"patched":"true"}}}`), metav1.PatchOptions{})
	must("patch", err)
	next(watch.Modified, "one")
	patched.SetAnnotations(map[string]string{"patched": "true", "updated": "true"})
	updated, err := cs.Update(ctx, patched, metav1.UpdateOptions{})
	must("update", err)
	next(watch.Modified, "one")
	if updated.GetAnnotations()["updated"] != "true" || updated.GetGeneration() != 1 {
		t.Errorf("updated: annotations %v, generation %d", updated.GetAnnotations(), updated.GetGeneration())
	}
	got, err := cs.Get(ctx, "one", metav1.GetOptions{})
	if err != nil || got.GetUID() != updated.GetUID() {
		t.Errorf("get: %v, %v", got, err)
	}
	must("delete", cs.Delete(ctx, "one", metav1.DeleteOptions{}))
	next(watch.Deleted, "one")
	must("delete the rest", cs.DeleteCollection(ctx, metav1.DeleteOptions{}, set))
	if list, err := cs.List(ctx, set); err != nil || len(list.Items) != 0 {
		t.Errorf("after all were deleted: %d, %v", len(list.Items), err)
	}
}

// unstructuredCopy keeps the literal above from being changed by clients.
func unstructuredCopy(body map[string]any) map[string]any {
	return (&unstructured.Unstructured{Object: body}).DeepCopy().Object
}

// policyStatus: a policy's status is written by itself, and neither its spec nor its metadata with it.
func policyStatus(t *testing.T, cs dynamic.NamespaceableResourceInterface) {
	ctx := t.Context()
	k := registrations["validatingadmissionpolicies"]
	made, err := cs.Create(ctx, servertest.Object("admissionregistration.k8s.io/v1", k.kind, "", "p", unstructuredCopy(k.body)),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	condition := map[string]any{
		"type":               "StatusPatched",
		"status":             "True",
		"reason":             "E2E",
		"message":            "Set by a test",
		"lastTransitionTime": "2024-01-01T00:00:00Z",
	}
	if err := unstructured.SetNestedSlice(made.Object, []any{condition}, "status", "conditions"); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(made.Object, "Ignore", "spec", "failurePolicy"); err != nil {
		t.Fatal(err)
	}
	updated, err := cs.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedSlice(updated.Object, "status", "conditions"); len(got) != 1 ||
		updated.GetGeneration() != 1 {
		t.Errorf("updated: conditions %v, generation %d", got, updated.GetGeneration())
	}
	if got, _, _ := unstructured.NestedString(updated.Object, "spec", "failurePolicy"); got != "Fail" {
		t.Errorf("the spec changed with the status: failurePolicy %q", got)
	}
	patched, err := cs.Patch(ctx, "p", types.MergePatchType,
		[]byte(
			`{"metadata":{"annotations":{"patchedstatus":"true"}},"status":{"observedGeneration":1,"typeChecking":{}}}`),
		metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(patched.Object, "status", "observedGeneration"); n != 1 ||
		len(patched.GetAnnotations()) != 0 {
		t.Errorf("patched: %v", patched.Object)
	}
	read, err := cs.Get(ctx, "p", metav1.GetOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if _, there, _ := unstructured.NestedMap(read.Object, "status", "typeChecking"); !there {
		t.Errorf("status: %v", read.Object["status"])
	}
}
