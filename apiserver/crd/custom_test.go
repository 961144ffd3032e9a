// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"keelson/apiserver/servertest"
)

func withStatus(crd *apiextensionsv1.CustomResourceDefinition) {
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		}
	}
}

func TestCustomResourceLifecycle(t *testing.T) {
	c := servertest.StartCustom(t)
	c.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	widgets := c.In("v1", "widgets")
	ctx := t.Context()
	watcher, err := widgets.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	made, err := widgets.Create(ctx, servertest.Object("example.com/v1", "Widget", "", "a", map[string]any{
		"spec":   map[string]any{"size": int64(1), "unknown": "x", "free": map[string]any{"any": "thing"}},
		"status": map[string]any{"phase": "mine"},
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"size": int64(1), "color": "red", "free": map[string]any{"any": "thing"}}
	if d := cmp.Diff(want, made.Object["spec"]); d != "" {
		t.Errorf("created spec (-want +got):\n%s", d)
	}
	if made.GetGeneration() != 1 || made.GetUID() == "" || made.Object["status"] != nil {
		t.Errorf("created: generation %d uid %q status %v", made.GetGeneration(), made.GetUID(), made.Object["status"])
	}
	made.Object["status"] = map[string]any{"phase": "Running"}
	unstructured.SetNestedField(made.Object, int64(7), "spec", "size")
	st, err := widgets.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedInt64(st.Object, "spec", "size"); size != 1 || st.GetGeneration() != 1 {
		t.Errorf("status update changed spec.size to %d, generation %d", size, st.GetGeneration())
	}
	patched, err := widgets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"size":5}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if phase, _, _ := unstructured.NestedString(patched.Object, "status", "phase"); phase != "Running" ||
		patched.GetGeneration() != 2 {
		t.Errorf("after patch: phase %q, generation %d, want Running, 2", phase, patched.GetGeneration())
	}
	if err := widgets.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Deleted} {
		ev := <-watcher.ResultChan()
		if u, ok := ev.Object.(*unstructured.Unstructured); ev.Type != want || !ok || u.GetName() != "a" {
			t.Errorf("event %s %v, want %s of a", ev.Type, ev.Object, want)
		}
	}
}

// TestDeleteOptionsOfCustomResources: the body of a deletion may leave out its kind, its version or both.
func TestDeleteOptionsOfCustomResources(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	widgets := custom.In("v1", "widgets")
	const path = "/apis/example.com/v1/namespaces/ns/widgets/a"
	for body, code := range map[string]int{
		`{"propagationPolicy":"Background"}`:                                                      200,
		`{"kind":"DeleteOptions","propagationPolicy":"Background"}`:                               200,
		`{"apiVersion":"example.com/v1","propagationPolicy":"Background"}`:                        200,
		`{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1","propagationPolicy":"Background"}`: 200,
		`{"kind":"Widget","propagationPolicy":"Background"}`:                                      400,
		`{"kind":"DeleteOptions","apiVersion":"example.com/v2","propagationPolicy":"Background"}`: 400,
	} {
		if err := create(t, widgets, servertest.Widget("a", map[string]any{"size": int64(1)})); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		custom.Call(t, "DELETE", path, body).Wants(t, body, code, "")
	}
}

func TestCustomResourceRefusals(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	widgets := custom.In("v1", "widgets")
	if _, err := widgets.Create(t.Context(), servertest.Widget("old", map[string]any{"size": int64(9)}),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		do   func() error
		want string
	}{
		"required": {
			func() error { return create(t, widgets, servertest.Widget("a", map[string]any{"color": "red"})) },
			`Widget.example.com "a" is invalid: [spec.size: Required value, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]`,
		},
		"minimum": {
			func() error { return create(t, widgets, servertest.Widget("a", map[string]any{"size": int64(0)})) },
			`Widget.example.com "a" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1`,
		},
		"enum": {
			func() error {
				return create(t, widgets, servertest.Widget("a", map[string]any{"size": int64(1), "color": "blue"}))
			},
			`Widget.example.com "a" is invalid: [spec.color: Unsupported value: "blue": supported values: "red", "green", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]`,
		},
		"set": {func() error {
			return create(t, widgets, servertest.Widget("a", map[string]any{"size": int64(1), "tags": []any{"x", "x"}}))
		}, `Widget.example.com "a" is invalid: spec.tags[1]: Duplicate value: "x"`},
		"rule": {
			func() error { return create(t, widgets, servertest.Widget("a", map[string]any{"size": int64(100)})) },
			`Widget.example.com "a" is invalid: spec: Invalid value: too big`,
		},
		"transition rule": {func() error {
			_, err := widgets.Patch(t.Context(), "old", types.MergePatchType, []byte(`{"spec":{"size":8}}`),
				metav1.PatchOptions{})
			return err
		}, `Widget.example.com "old" is invalid: spec: Invalid value: may not shrink`},
		"strict": {func() error {
			_, err := widgets.Create(t.Context(), servertest.Widget("a", map[string]any{"size": int64(1), "extra": "x"}),
				metav1.CreateOptions{FieldValidation: "Strict"})
			return err
		}, `Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "spec.extra"`},
		"strict patch": {func() error {
			_, err := widgets.Patch(t.Context(), "old", types.MergePatchType, []byte(`{"spec":{"extra":8}}`),
				metav1.PatchOptions{FieldValidation: "Strict"})
			return err
		}, `strict decoding error: unknown field "spec.extra"`},
		"strict metadata": {func() error {
			u := servertest.Widget("a", map[string]any{"size": int64(1)})
			u.Object["metadata"].(map[string]any)["odd"] = "x"
			_, err := widgets.Create(t.Context(), u, metav1.CreateOptions{FieldValidation: "Strict"})
			return err
		}, `strict decoding error: unknown field "metadata.odd"`},
		"strategic": {func() error {
			_, err := widgets.Patch(t.Context(), "old", types.StrategicMergePatchType, []byte(`{}`),
				metav1.PatchOptions{})
			return err
		}, `accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml`},
		"no version": {func() error {
			u := servertest.Widget("old", map[string]any{"size": int64(9)})
			_, err := widgets.Update(t.Context(), u, metav1.UpdateOptions{})
			return err
		}, `metadata.resourceVersion: Invalid value: 0: must be specified for an update`},
		"apply unknown": {func() error {
			_, err := widgets.Apply(t.Context(), "old", servertest.Widget("old", map[string]any{"extra": "x"}),
				metav1.ApplyOptions{FieldManager: "m"})
			return err
		}, `.spec.extra: field not declared in schema`},
		"unknown version": {func() error {
			_, err := custom.In("v2", "widgets").List(t.Context(), metav1.ListOptions{})
			return err
		}, `the server could not find the requested resource`},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.do()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func create(t *testing.T, r dynamic.ResourceInterface, u *unstructured.Unstructured) error {
	_, err := r.Create(t.Context(), u, metav1.CreateOptions{})
	return err
}

// TestLastLabelRemoved: when an applier no longer names any labels, the map that another manager has made is left out
// and not null, which programs that read Unstructured objects cannot take.
func TestLastLabelRemoved(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	const path = "/apis/example.com/v1/namespaces/ns/widgets"
	body := func(metadata string) string {
		return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"` + metadata + `},"spec":{"size":1}}`
	}
	custom.Call(t, "POST", path+"?fieldManager=first", body(`,"labels":{"x":"1"},"annotations":{"y":"1"}`))
	const second = "/a?fieldManager=second&force=true"
	custom.Call(t, "PATCH", path+second, body(`,"labels":{"x":"2"},"annotations":{"y":"2"}`), "Content-Type", servertest.ApplyPatch).
		Wants(t, "apply", 200, `"x":"2"`)
	custom.Call(t, "PATCH", path+second, body(""), "Content-Type", servertest.ApplyPatch).Wants(t, "apply without labels", 200, "")
	got := string(custom.Call(t, "GET", path+"/a", "").Body)
	if strings.Contains(got, "null") || !strings.Contains(got, `"name":"a"`) {
		t.Errorf("without labels: %s", got)
	}
}

func TestCustomResourceApply(t *testing.T) {
	c := servertest.StartCustom(t)
	c.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	widgets := c.In("v1", "widgets")
	ctx := t.Context()
	if _, err := widgets.Apply(ctx, "a", servertest.Widget("a", map[string]any{"size": int64(1), "tags": []any{"x"}}),
		metav1.ApplyOptions{FieldManager: "one"}); err != nil {
		t.Fatal(err)
	}
	got, err := widgets.Apply(ctx, "a", servertest.Widget("a", map[string]any{"tags": []any{"y"}}), metav1.ApplyOptions{
		FieldManager: "two",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"size": int64(1), "color": "red", "tags": []any{"x", "y"}}
	if d := cmp.Diff(want, got.Object["spec"]); d != "" {
		t.Errorf("two appliers (-want +got):\n%s", d)
	}
	_, err = widgets.Apply(ctx, "a", servertest.Widget("a", map[string]any{"size": int64(2)}), metav1.ApplyOptions{
		FieldManager: "two",
	})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "one": .spec.size`) {
		t.Errorf("apply of another's field: %v", err)
	}
	if got, err = widgets.Apply(ctx, "a", servertest.Widget("a", map[string]any{"size": int64(2)}),
		metav1.ApplyOptions{FieldManager: "two", Force: true}); err != nil {
		t.Fatal(err)
	}
	var owners []string
	for _, e := range got.GetManagedFields() {
		owners = append(owners, e.Manager+" "+string(e.Operation)+" "+e.FieldsV1.GetRawString())
	}
	wantOwners := []string{`one Apply {"f:spec":{"f:tags":{"v:\"x\"":{}}}}`, `two Apply {"f:spec":{"f:size":{}}}`}
	if d := cmp.Diff(wantOwners, owners); d != "" {
		t.Errorf("owners (-want +got):\n%s", d)
	}
}

func TestDefinitionConflicts(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	other := servertest.Definition("gadgets", "Widget", servertest.WidgetSchema, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Names.Singular = "gadget"
		crd.Spec.Names.ListKind = "GadgetList"
	})
	if _, err := custom.Resource(servertest.DefinitionsGVR).Create(t.Context(), servertest.ToUnstructured(t, other),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	condition := func(
		crd *apiextensionsv1.CustomResourceDefinition, typ apiextensionsv1.CustomResourceDefinitionConditionType,
	) string {
		for _, cond := range crd.Status.Conditions {
			if cond.Type == typ {
				return string(cond.Status) + " " + cond.Reason + ": " + cond.Message
			}
		}
		return ""
	}
	crd := custom.WaitCRD(other.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return len(crd.Status.Conditions) > 0
	})
	if got, want := condition(crd, apiextensionsv1.NamesAccepted),
		`False KindConflict: "Widget" is already in use`; got != want {
		t.Errorf("NamesAccepted is %s, want %s", got, want)
	}
	if got, want := condition(crd, apiextensionsv1.Established),
		`False NotAccepted: not all names are accepted`; got != want {
		t.Errorf("Established is %s, want %s", got, want)
	}
	// The name gets free.
	if err := custom.Resource(servertest.DefinitionsGVR).Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.WaitCRD(other.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return condition(crd,
			apiextensionsv1.Established) == "True InitialNamesAccepted: the initial names have been accepted"
	})
}

func TestDefinitionDeletedWithItsObjects(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	widgets := custom.In("v1", "widgets")
	held := servertest.Widget("held", map[string]any{"size": int64(1)})
	held.SetFinalizers([]string{"example.com/hold"})
	for _, u := range []*unstructured.Unstructured{servertest.Widget("free", map[string]any{"size": int64(1)}), held} {
		if err := create(t, widgets, u); err != nil {
			t.Fatal(err)
		}
	}
	if err := custom.Resource(servertest.DefinitionsGVR).Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("the free one to go", func() bool {
		_, err := widgets.Get(t.Context(), "free", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	err := create(t, widgets, servertest.Widget("late", map[string]any{"size": int64(1)}))
	if want := `widgets.example.com "late" is forbidden: create not allowed while custom resource definition is terminating`; err == nil ||
		err.Error() != want {
		t.Errorf("create while terminating: %v, want %s", err, want)
	}
	custom.Wait("the held one to be marked", func() bool {
		u, err := widgets.Get(t.Context(), "held", metav1.GetOptions{})
		return err == nil && u.GetDeletionTimestamp() != nil
	})
	if _, err := widgets.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("the definition to go", func() bool {
		_, err := custom.CRD("widgets.example.com")
		return apierrors.IsNotFound(err)
	})
	custom.Wait("the resource to go", func() bool {
		_, err := widgets.List(t.Context(), metav1.ListOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestInvalidDefinitions(t *testing.T) {
	custom := servertest.StartCustom(t)
	for name, tc := range map[string]struct {
		crd  *apiextensionsv1.CustomResourceDefinition
		want string
	}{
		"name": {
			servertest.Definition("widgets", "Widget", servertest.WidgetSchema, func(crd *apiextensionsv1.CustomResourceDefinition) {
				crd.Name = "x.example.com"
			}),
			`metadata.name: Invalid value: "x.example.com": must be spec.names.plural+"."+spec.group`,
		},
		"not structural": {
			servertest.Definition("widgets", "Widget", `{properties: {a: {}}}`),
			`spec.validation.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields`,
		},
		"rule": {
			servertest.Definition("widgets", "Widget", `{type: object, x-kubernetes-validations: [{rule: "self.nothing"}]}`),
			`"OptionalOldSelf":null}: compilation failed: ERROR: <input>:1:5: undefined field 'nothing'`,
		},
		"default": {
			servertest.Definition("widgets", "Widget", `{type: object, properties: {a: {type: string, default: 3}}}`),
			`spec.validation.openAPIV3Schema.properties[a].default: Invalid value: "integer":  in body must be of type string: "integer"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := custom.Resource(servertest.DefinitionsGVR).Create(t.Context(), servertest.ToUnstructured(t, tc.crd), metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestCustomResourcesInDiscovery(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus, func(
		crd *apiextensionsv1.CustomResourceDefinition,
	) {
		crd.Spec.Names.ShortNames = []string{"wd"}
		crd.Spec.Names.Categories = []string{"all"}
	}))
	list, err := custom.Clients(t).Discovery().ServerResourcesForGroupVersion("example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(list.APIResources) // plain
	want := `[{"name":"widgets","singularName":"widget","namespaced":true,"kind":"Widget","verbs":["delete","deletecollection","get","list","patch","create","update","watch"],"shortNames":["wd"],"categories":["all"],"storageVersionHash":`
	if !strings.HasPrefix(string(b), want) || len(list.APIResources) != 2 {
		t.Errorf("resources are %s", b)
	}
	_, all, err := custom.Clients(t).Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, l := range all {
		found = found || l.GroupVersion == "example.com/v1"
	}
	if !found {
		t.Error("aggregated discovery has no example.com/v1")
	}
}

// TestCustomResourcesInOpenAPI waits for both documents to show what a definition says, and to forget it.
func TestCustomResourcesInOpenAPI(t *testing.T) {
	custom := servertest.StartCustom(t)
	v2 := func() map[string]map[string]any {
		b, err := custom.Clients(t).RESTClient().Get().AbsPath("/openapi/v2").Do(t.Context()).Raw()
		if err != nil {
			t.Fatal(err)
		}
		var doc struct{ Definitions map[string]map[string]any }
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		return doc.Definitions
	}
	if _, ok := v2()["com.example.v1.Widget"]; ok {
		t.Fatal("the definition is published before it exists")
	}
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	d := v2()["com.example.v1.Widget"]
	b, _ := json.Marshal(d["properties"]) // plain
	for _, want := range []string{
		`"enum":["red","green"]`, `"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"`,
		`"rule":"self.size < 100"`,
	} {
		if !strings.Contains(strings.ReplaceAll(string(b), `\u003c`, "<"), want) {
			t.Errorf("v2 has no %s in %s", want, b)
		}
	}
	paths, err := custom.Clients(t).Discovery().OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := paths["apis/example.com/v1"].Schema("application/json")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"com.example.v1.Widget"`, `"default":"red"`, `"com.example.v1.WidgetList"`,
		`"/apis/example.com/v1/namespaces/{namespace}/widgets/{name}/status"`,
	} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("v3 has no %s", want)
		}
	}
	if err := custom.Resource(servertest.DefinitionsGVR).Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("v2 to forget", func() bool {
		_, ok := v2()["com.example.v1.Widget"]
		return !ok
	})
	if paths, err = custom.Clients(t).Discovery().OpenAPIV3().Paths(); err != nil ||
		paths["apis/example.com/v1"] != nil {
		t.Errorf("v3 still has example.com/v1 (err %v)", err)
	}
}
