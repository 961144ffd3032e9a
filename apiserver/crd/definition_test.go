// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"keelson/apiserver/servertest"
)

// TestDefinitionStatus: the status is read, updated and patched through its subresource, whatever the conditions say,
// and the controller puts its own back.
func TestDefinitionStatus(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	ctx := t.Context()
	crds := custom.Resource(servertest.DefinitionsGVR)
	name := "widgets.example.com"
	has := func(u *unstructured.Unstructured, message string) bool {
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(v any) bool {
			m, _ := v.(map[string]any)
			return m["message"] == message
		})
	}
	live, err := crds.Get(ctx, name, metav1.GetOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	if len(conditions) < 2 || live.Object["spec"] == nil {
		t.Errorf("status subresource is %v", live.Object)
	}
	if err := unstructured.SetNestedSlice(live.Object, append(conditions, map[string]any{"message": "updated"}),
		"status", "conditions"); err != nil {
		t.Fatal(err)
	}
	updated, err := crds.UpdateStatus(ctx, live, metav1.UpdateOptions{})
	if err != nil || !has(updated, "updated") {
		t.Fatalf("updated: %v, %v", updated, err)
	}
	patched, err := crds.Patch(ctx, name, types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/status/conditions","value":[{"message":"patched"}]}]`), metav1.PatchOptions{},
		"status")
	if err != nil || !has(patched, "patched") || has(patched, "updated") {
		t.Fatalf("patched: %v, %v", patched, err)
	}
	custom.WaitCRD(name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return slices.ContainsFunc(crd.Status.Conditions, func(
			c apiextensionsv1.CustomResourceDefinitionCondition,
		) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		})
	})
	if err := create(t, custom.In("v1", "widgets"), servertest.Widget("a", map[string]any{"size": int64(1)})); err != nil {
		t.Errorf("after its conditions came back: %v", err)
	}
}

// TestDefinitionCollection: definitions are listed by label and deleted as a collection, which leaves the others.
func TestDefinitionCollection(t *testing.T) {
	custom := servertest.StartCustom(t)
	ctx := t.Context()
	crds := custom.Resource(servertest.DefinitionsGVR)
	for _, plural := range []string{"ones", "twos", "threes"} {
		custom.Define(servertest.Definition(plural, plural[:len(plural)-1]+"kind", `{type: object}`, func(
			crd *apiextensionsv1.CustomResourceDefinition,
		) {
			crd.Labels = map[string]string{"some": map[bool]string{true: "yes", false: "no"}[plural != "threes"]}
		}))
	}
	some := metav1.ListOptions{LabelSelector: "some=yes"}
	if list, err := crds.List(ctx, some); err != nil ||
		!slices.Equal(namesIn(list), []string{"ones.example.com", "twos.example.com"}) {
		t.Errorf("listed %v, %v", namesIn(list), err)
	}
	if err := crds.DeleteCollection(ctx, metav1.DeleteOptions{}, some); err != nil {
		t.Fatal(err)
	}
	custom.Wait("the two to go", func() bool {
		list, err := crds.List(ctx, metav1.ListOptions{})
		return err == nil && slices.Equal(namesIn(list), []string{"threes.example.com"})
	})
}

// TestDefaultsComeAndGo: a default appears on read, is stored by a create, and stays where it was stored after it has
// left the schema.
func TestDefaultsComeAndGo(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", `{type: object, properties: {a: {type: string}, b: {type: string}}}`))
	ctx := t.Context()
	widgets := custom.In("v1", "widgets")
	if err := create(t, widgets, servertest.Widget("before", nil)); err != nil {
		t.Fatal(err)
	}
	patch := func(body string) {
		t.Helper()
		if _, err := custom.Resource(servertest.DefinitionsGVR).Patch(ctx, "widgets.example.com", types.JSONPatchType, []byte(body),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	field := func(name, field string) any {
		t.Helper()
		u, err := widgets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u.Object[field]
	}
	patch(`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/a/default","value":"A"}]`)
	custom.Wait("the default on read", func() bool { return field("before", "a") == "A" })
	made, err := widgets.Create(ctx, servertest.Widget("between", nil), metav1.CreateOptions{})
	if err != nil || made.Object["a"] != "A" {
		t.Errorf("created with the default: %v, %v", made, err)
	}
	patch(`[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/a/default"},
		{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/b/default","value":"B"}]`)
	custom.Wait("the other default", func() bool { return field("between", "b") == "B" })
	if got := field("between", "a"); got != "A" {
		t.Errorf("the stored default is now %v", got)
	}
	if got := field("before", "a"); got != nil {
		t.Errorf("the default that was never stored is still %v", got)
	}
}

// TestDefinitionMadeAgain: while objects hold a definition that is being deleted it says so, and another of its name is
// refused; made again as soon as it has gone it works at once, and no earlier object is left.
func TestDefinitionMadeAgain(t *testing.T) {
	custom := servertest.StartCustom(t)
	ctx := t.Context()
	crds := custom.Resource(servertest.DefinitionsGVR)
	widgets := custom.In("v1", "widgets")
	crd := servertest.Definition("widgets", "Widget", `{type: object, x-kubernetes-preserve-unknown-fields: true}`)
	custom.Define(crd)
	held := servertest.Widget("held", nil)
	held.SetFinalizers([]string{"example.com/hold"})
	for _, u := range []*unstructured.Unstructured{held, servertest.Widget("free", nil)} {
		if err := create(t, widgets, u); err != nil {
			t.Fatal(err)
		}
	}
	if err := crds.Delete(ctx, crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.WaitCRD(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return slices.ContainsFunc(crd.Status.Conditions, func(
			c apiextensionsv1.CustomResourceDefinitionCondition,
		) bool {
			return c.Type == apiextensionsv1.Terminating && c.Status == apiextensionsv1.ConditionTrue &&
				c.Reason == "InstanceDeletionInProgress" &&
				c.Message == "CustomResource deletion is in progress"
		})
	})
	_, err := crds.Create(ctx, servertest.ToUnstructured(t, crd), metav1.CreateOptions{})
	if want := `object is being deleted: customresourcedefinitions.apiextensions.k8s.io "widgets.example.com" already exists`; !apierrors.IsAlreadyExists(
		err) ||
		err.Error() != want {
		t.Errorf("made again too early: %v, want %s", err, want)
	}
	if u, err := widgets.Get(ctx, "held", metav1.GetOptions{}); err != nil || u.GetDeletionTimestamp() == nil {
		t.Errorf("the one that holds it: %v, %v", u, err)
	}
	if _, err := widgets.Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		custom.Wait("the definition to be gone and made again", func() bool {
			_, err := crds.Create(ctx, servertest.ToUnstructured(t, crd), metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
			return err == nil
		})
		custom.WaitCRD(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
			return slices.ContainsFunc(crd.Status.Conditions, func(
				c apiextensionsv1.CustomResourceDefinitionCondition,
			) bool {
				return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
			})
		})
		if list, err := widgets.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
			t.Fatalf("earlier objects are left: %v, %v", list, err)
		}
		if err := create(t, widgets, servertest.Widget("new", nil)); err != nil {
			t.Fatal(err)
		}
		if err := crds.Delete(ctx, crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMixedStorageVersions: objects stored in different versions are listed in each version through the webhook.
func TestMixedStorageVersions(t *testing.T) {
	custom := servertest.StartCustom(t)
	h := &converter{}
	addr, ca := serveTLS(t, h)
	url := "https://" + addr + "/convert"
	crd := servertest.TwoVersions(&apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{CABundle: ca, URL: &url},
			ConversionReviewVersions: []string{"v1"},
		},
	})
	crd.Spec.Versions[1].Schema.OpenAPIV3Schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{
		"hostPort": {Type: "string"},
	}
	custom.Define(crd)
	ctx := t.Context()
	v1 := custom.In("v1", "servers")
	v2 := custom.In("v2", "servers")
	if err := create(t, v1,
		servertest.Object("example.com/v1", "Server", "ns", "a", map[string]any{"host": "h", "port": "1"})); err != nil {
		t.Fatal(err)
	}
	patch := `[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`
	if _, err := custom.Resource(servertest.DefinitionsGVR).Patch(ctx, crd.Name, types.JSONPatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("writes in v2 that call no webhook", func() bool {
		before := h.calls.Load()
		if err := create(t, v2,
			servertest.Object("example.com/v2", "Server", "ns", "b", map[string]any{"hostPort": "h:2"})); err != nil {
			t.Fatal(err)
		}
		if h.calls.Load() == before {
			return true
		}
		if err := v2.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		return false
	})
	for version, r := range map[string]dynamic.ResourceInterface{"v1": v1, "v2": v2} {
		list, err := r.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 {
			t.Fatalf("list in %s: %v, %v", version, list, err)
		}
		for i, port := range []string{"1", "2"} {
			u := list.Items[i].Object
			ok := u["hostPort"] == "h:"+port
			if version == "v1" {
				ok = u["host"] == "h" && u["port"] == port && u["hostPort"] == nil
			}
			if !ok || list.Items[i].GetAPIVersion() != "example.com/"+version {
				t.Errorf("in %s: %v", version, u)
			}
		}
	}
}

// TestRBACOfCustomResources: rules with names let a user at those objects alone, and by name alone; subresources are
// rights of their own.
func TestRBACOfCustomResources(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	c := servertest.CustomOn(t, running)
	c.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	for _, name := range []string{"mine", "other"} {
		if err := create(t, c.In("v1", "widgets"), servertest.Widget(name, map[string]any{"size": int64(1)})); err != nil {
			t.Fatal(err)
		}
	}
	named := servertest.PolicyRule([]string{"get", "list", "watch", "patch", "delete"}, []string{"example.com"}, []string{"widgets"})
	named.ResourceNames = []string{"mine"}
	status := servertest.PolicyRule([]string{"patch"}, []string{"example.com"}, []string{"widgets/status"})
	running.Grant(t, "mine-only", "rita", []rbacv1.PolicyRule{named, status}...)
	as, err := dynamic.NewForConfig(running.User("rita"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	mine := as.Resource(servertest.WidgetsGVR).Namespace("ns")
	body := []byte(`{"spec":{"color":"green"}}`)
	for what, tc := range map[string]struct {
		do      func() error
		allowed bool
	}{
		"get mine": {func() error {
			_, err := mine.Get(ctx, "mine", metav1.GetOptions{})
			return err
		}, true},
		"get other": {func() error {
			_, err := mine.Get(ctx, "other", metav1.GetOptions{})
			return err
		}, false},
		"list all": {func() error {
			_, err := mine.List(ctx, metav1.ListOptions{})
			return err
		}, false},
		"list by name": {func() error {
			_, err := mine.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=mine"})
			return err
		}, true},
		"list the other": {func() error {
			_, err := mine.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=other"})
			return err
		}, false},
		"watch by name": {func() error {
			w, err := mine.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=mine"})
			if err == nil {
				w.Stop()
			}
			return err
		}, true},
		"patch mine": {func() error {
			_, err := mine.Patch(ctx, "mine", types.MergePatchType, body, metav1.PatchOptions{})
			return err
		}, true},
		"patch other": {func() error {
			_, err := mine.Patch(ctx, "other", types.MergePatchType, body, metav1.PatchOptions{})
			return err
		}, false},
		"patch other's status": {func() error {
			_, err := mine.Patch(ctx, "other", types.MergePatchType, []byte(`{"status":{"phase":"x"}}`),
				metav1.PatchOptions{}, "status")
			return err
		}, true},
		"create": {
			func() error { return create(t, mine, servertest.Widget("new", map[string]any{"size": int64(1)})) }, false,
		},
		"delete collection": {
			func() error { return mine.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}) }, false,
		},
	} {
		if err := tc.do(); tc.allowed && err != nil || !tc.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, allowed: %v", what, err, tc.allowed)
		}
	}
}
