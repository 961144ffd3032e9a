// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"

	"keelson/apiserver/servertest"
)

// owners shows managedFields in short: "manager Operation subresource".
func owners(m metav1.ObjectMeta) []string {
	var out []string
	for _, e := range m.ManagedFields {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Manager, e.Operation, e.Subresource)))
	}
	slices.Sort(out)
	return out
}

// owned reports whether the manager's entry has the path ("f:data/f:a") in it.
func owned(t *testing.T, m metav1.ObjectMeta, manager, path string) bool {
	t.Helper()
	for _, e := range m.ManagedFields {
		if e.Manager != manager {
			continue
		}
		var set map[string]any
		if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &set); err != nil {
			t.Fatal(err)
		}
		found := true
		for part := range strings.SplitSeq(path, "/") {
			next, ok := set[part].(map[string]any)
			if !ok {
				found = false
				break
			}
			set = next
		}
		if found {
			return true
		}
	}
	return false
}

type applier struct {
	t *testing.T
	r *servertest.Running
}

func (a applier) maps(name, manager, data string, force bool) (*corev1.ConfigMap, error) {
	a.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":%s}`, name, data)
	return a.r.Clients(a.t).CoreV1().ConfigMaps("default").Patch(a.t.Context(), name, types.ApplyPatchType,
		[]byte(body),
		metav1.PatchOptions{FieldManager: manager, Force: &force})
}

func (a applier) must(m *corev1.ConfigMap, err error) *corev1.ConfigMap {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
	return m
}

// TestApplyConflicts is about who may change what.
func TestApplyConflicts(t *testing.T) {
	running := servertest.Start(t, nil)
	a := applier{t, running}
	a.must(a.maps("c", "one", `{"a":"1","b":"1"}`, false))
	_, err := a.maps("c", "two", `{"a":"2","b":"2"}`, false)
	want := "Apply failed with 2 conflicts: conflicts with \"one\":\n- .data.a\n- .data.b"
	if !apierrors.IsConflict(err) || err.Error() != want {
		t.Errorf("conflict: %v\nwant %s", err, want)
	}
	var status *apierrors.StatusError
	if s, ok := err.(*apierrors.StatusError); ok { //nolint:errorlint // clients return it bare
		status = s
	}
	if status == nil || len(status.ErrStatus.Details.Causes) != 2 || status.ErrStatus.Details.Causes[0] !=
		(metav1.StatusCause{
			Type:    metav1.CauseTypeFieldManagerConflict,
			Message: `conflict with "one"`,
			Field:   ".data.a",
		}) {
		t.Errorf("causes of a conflict: %+v", status)
	}
	_, err = a.maps("c", "two", `{"a":"2"}`, false)
	if want := `Apply failed with 1 conflict: conflict with "one": .data.a`; err == nil || err.Error() != want {
		t.Errorf("one conflict: %v, want %s", err, want)
	}
	// The same value is shared, not a conflict.
	configMap := a.must(a.maps("c", "two", `{"a":"1"}`, false))
	if !owned(t, configMap.ObjectMeta, "one", "f:data/f:a") || !owned(t, configMap.ObjectMeta, "two", "f:data/f:a") {
		t.Errorf("a shared field: %v", configMap.ManagedFields)
	}
	// Force takes it away from the other.
	configMap = a.must(a.maps("c", "two", `{"a":"2"}`, true))
	if owned(t, configMap.ObjectMeta, "one", "f:data/f:a") || !owned(t, configMap.ObjectMeta, "one", "f:data/f:b") ||
		configMap.Data["a"] != "2" {
		t.Errorf("after force: %v %v", configMap.Data, configMap.ManagedFields)
	}
	// A field that is not applied any more is removed, unless another manager owns it.
	configMap = a.must(a.maps("c", "one", `{}`, false))
	if _, there := configMap.Data["b"]; there || configMap.Data["a"] != "2" {
		t.Errorf("after giving up: %v", configMap.Data)
	}
	// An update takes ownership of what it changes.
	configMap.Data["a"] = "3"
	updated, err := running.Clients(t).CoreV1().ConfigMaps("default").Update(t.Context(),
		configMap, metav1.UpdateOptions{
			FieldManager: "editor",
		})
	if err != nil {
		t.Fatal(err)
	}
	if owned(t, updated.ObjectMeta, "two", "f:data/f:a") || !owned(t, updated.ObjectMeta, "editor", "f:data/f:a") {
		t.Errorf("after an update: %v", owners(updated.ObjectMeta))
	}
	_, err = a.maps("c", "two", `{"a":"4"}`, false)
	if err == nil || err.Error() != `Apply failed with 1 conflict: conflict with "editor" using v1: .data.a` {
		t.Errorf("conflict with an updater: %v", err)
	}
}

// TestPutKeepsEmptyMaps: what a second manager reads and writes back still belongs to the one who applied it, though
// JSON leaves out the empty map in it.
func TestPutKeepsEmptyMaps(t *testing.T) {
	running := servertest.Start(t, nil)
	const path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/n"
	policy := func(port int) string {
		return fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"n"},"spec":{
			"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{}}}],"ports":[{"port":%d}]}]}}`, port)
	}
	running.Call(t, "PATCH", path+"?fieldManager=first", policy(80), "Content-Type", servertest.ApplyPatch).
		Wants(t, "apply", 201, "")
	var read map[string]any
	if err := json.Unmarshal(running.Call(t, "GET", path, "").Body, &read); err != nil {
		t.Fatal(err)
	}
	metadata, _ := read["metadata"].(map[string]any)
	metadata["labels"] = map[string]any{"touched": "1"}
	written, err := json.MarshalIndent(read, "", "  ") // with blanks in managedFields, as Python's client writes them
	if err != nil {
		t.Fatal(err)
	}
	running.Call(t, "PUT", path+"?fieldManager=second", string(written)).Wants(t, "put", 200, `"touched":"1"`)
	running.Call(t, "PATCH", path+"?fieldManager=first", policy(81), "Content-Type", servertest.ApplyPatch).
		Wants(t, "apply again", 200, `"port":81`)
}

// TestApplyNothing: applying the same again writes nothing, however late.
func TestApplyNothing(t *testing.T) {
	r := servertest.Start(t, nil)
	a := applier{t, r}
	first := a.must(a.maps("c", "one", `{"a":"1"}`, false))
	at := &metav1.Time{Time: time.Now().Add(-time.Hour).Truncate(time.Second)}
	first.ManagedFields[0].Time = at
	first.Labels = map[string]string{"who": "else"} // an update of times alone changes nothing
	first = a.must(r.Clients(t).CoreV1().ConfigMaps("default").Update(t.Context(), first, metav1.UpdateOptions{
		FieldManager: "editor",
	}))
	if len(first.ManagedFields) != 2 || !first.ManagedFields[0].Time.Equal(at) {
		t.Fatalf("the time that a client sets for applied fields is lost: %v, at first %v, want %v",
			owners(first.ObjectMeta), first.ManagedFields[0].Time, at)
	}
	again := a.must(a.maps("c", "one", `{"a":"1"}`, false))
	if again.ResourceVersion != first.ResourceVersion || !again.ManagedFields[0].Time.Equal(at) {
		t.Errorf("applied again: version %s at %v, was %s at %v", again.ResourceVersion, again.ManagedFields[0].Time,
			first.ResourceVersion, at)
	}
	changed := a.must(a.maps("c", "one", `{"a":"2"}`, false))
	if changed.ResourceVersion == first.ResourceVersion || len(changed.ManagedFields) != 2 ||
		changed.ManagedFields[0].Time.Equal(at) {
		t.Errorf("applied a change: version %s, %v", changed.ResourceVersion, owners(changed.ObjectMeta))
	}
}

// TestApplyCreates is about objects that are not there yet, and about names.
func TestApplyCreates(t *testing.T) {
	running := servertest.Start(t, nil)
	const base = "/api/v1/namespaces/default/configmaps/"
	for _, c := range []struct {
		what, name, body string
		code             int
		text             string
	}{
		{
			"new", "a", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":"1"}}`, 201,
			`"manager":"x","operation":"Apply"`,
		},
		{"there", "a", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`, 200, `"name":"a"`},
		{
			"new with a uid", "b", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","uid":"u"}}`, 409,
			"uid mismatch: the provided object specified uid u, and no existing object was found",
		},
		{
			"another name", "b", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`, 400,
			"the name of the object (c) does not match the name on the URL (b)",
		},
		{
			"managed fields", "a",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","managedFields":[{"manager":"y"}]}}`, 400,
			"metadata.managedFields must be nil",
		},
		{
			"duplicate items of a list", "../pods/p",
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"},{"name":"c","image":"j"}]}}`,
			500, "duplicate entries for key",
		},
		{
			"an item without its key", "../pods/p",
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"image":"i"}]}}`, 422,
			"spec.containers[0].name: Required value",
		},
	} {
		path := strings.Replace(base+c.name, "configmaps/../", "", 1)
		running.Call(t, "PATCH", path+"?fieldManager=x", c.body, "Content-Type", servertest.ApplyPatch).Wants(t, c.what, c.code,
			c.text)
	}
}

// TestApplyParts: each subresource has owners of its own.
func TestApplyParts(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	deployments := running.Clients(t).AppsV1().Deployments("default")
	const all = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"web"}},` +
		`"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"nginx"}]}}}}`
	apply := func(manager, body string, subs ...string) (*appsv1.Deployment, error) {
		return deployments.Patch(ctx, "web", types.ApplyPatchType, []byte(body),
			metav1.PatchOptions{FieldManager: manager}, subs...)
	}
	deployment, err := apply("owner", all)
	if err != nil {
		t.Fatal(err)
	}
	generation := deployment.Generation
	deployment, err = apply("watcher",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"status":{"replicas":1,"conditions":[{"type":"Available","status":"True"}]}}`,
		"status")
	if err != nil {
		t.Fatal(err)
	}
	if deployment.Status.Replicas != 1 || deployment.Generation != generation ||
		!slices.Equal(owners(deployment.ObjectMeta), []string{"owner Apply", "watcher Apply status"}) {
		t.Errorf("status applied: %d replicas, generation %d (was %d), owners %v", deployment.Status.Replicas,
			deployment.Generation,
			generation, owners(deployment.ObjectMeta))
	}
	// A spec in a status apply changes and owns nothing.
	deployment, err = apply("watcher",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":9},"status":{"replicas":1,"conditions":[{"type":"Available","status":"True"}]}}`,
		"status")
	if err != nil || *deployment.Spec.Replicas != 2 || owned(t, deployment.ObjectMeta, "watcher", "f:spec") {
		t.Errorf("spec in a status apply: %v, %d replicas, owners %v", err, *deployment.Spec.Replicas,
			owners(deployment.ObjectMeta))
	}
	// Scale: its replicas are the deployment's.
	raw := running.Call(t, "PATCH", "/apis/apps/v1/namespaces/default/deployments/web/scale?fieldManager=scaler",
		`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":5}}`,
		"Content-Type", servertest.ApplyPatch)
	raw.Wants(t, "scale applied over an owner", 409,
		`Apply failed with 1 conflict: conflict with "owner": .spec.replicas`)
	raw = running.Call(t, "PATCH",
		"/apis/apps/v1/namespaces/default/deployments/web/scale?fieldManager=scaler&force=true",
		`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":5}}`,
		"Content-Type", servertest.ApplyPatch)
	raw.Wants(t, "scale forced", 200, `"replicas":5`)
	if deployment, err = deployments.Get(ctx, "web", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if *deployment.Spec.Replicas != 5 || !owned(t, deployment.ObjectMeta, "scaler", "f:spec/f:replicas") ||
		owned(t, deployment.ObjectMeta, "owner", "f:spec/f:replicas") ||
		!slices.Contains(owners(deployment.ObjectMeta), "scaler Apply scale") {
		t.Errorf("after the scale: %d replicas, owners %v", *deployment.Spec.Replicas, owners(deployment.ObjectMeta))
	}
	_, err = apply("owner", all)
	if want := `Apply failed with 1 conflict: conflict with "scaler" with subresource "scale": .spec.replicas`; err == nil ||
		err.Error() != want {
		t.Errorf("conflict with a scale: %v, want %s", err, want)
	}
	// An update of the scale takes the count over.
	scale, err := deployments.GetScale(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 3
	if _, err := deployments.UpdateScale(ctx, "web", scale,
		metav1.UpdateOptions{FieldManager: "autoscaler"}); err != nil {
		t.Fatal(err)
	}
	if deployment, err = deployments.Get(ctx, "web", metav1.GetOptions{}); err != nil ||
		!slices.Contains(owners(deployment.ObjectMeta), "autoscaler Update scale") {
		t.Errorf("after an update of the scale: %v, owners %v", err, owners(deployment.ObjectMeta))
	}
	running.Call(t, "GET", "/apis/apps/v1/namespaces/default/deployments/web/scale", "", "Accept",
		"application/json;as=Table;g=meta.k8s.io;v=v1").
		Wants(t, "scale as a table", 200, `"name":"Desired"`)
	running.Call(t, "PATCH", "/apis/apps/v1/namespaces/default/deployments/none/scale?fieldManager=x",
		`{"apiVersion":"autoscaling/v1","kind":"Scale"}`, "Content-Type", servertest.ApplyPatch).
		Wants(t, "scale of nothing", 404, `deployments.apps "none" not found`)
	running.Call(t, "PATCH", "/apis/apps/v1/namespaces/default/deployments/none/status?fieldManager=x",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"none"}}`, "Content-Type", servertest.ApplyPatch).
		Wants(t, "status of nothing", 404, `deployments.apps "none" not found`)
}

// TestManagedFieldsReset is about clients that send managedFields themselves.
func TestManagedFieldsReset(t *testing.T) {
	running := servertest.Start(t, nil)
	a := applier{t, running}
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	fresh := func(name string) *corev1.ConfigMap { return a.must(a.maps(name, "one", `{"a":"1"}`, false)) }

	// Absent managedFields keep what is there; an empty list resets all; a list with one empty entry does too.
	m := fresh("absent")
	m.ManagedFields = nil
	m.Data["b"] = "2"
	got, err := maps.Update(ctx, m, metav1.UpdateOptions{FieldManager: "two"})
	if err != nil || !slices.Equal(owners(got.ObjectMeta), []string{"one Apply", "two Update"}) {
		t.Errorf("absent: %v, %v", err, owners(got.ObjectMeta))
	}
	for name, patch := range map[string]string{
		"empty":     `[{"op":"replace","path":"/metadata/managedFields","value":[]}]`,
		"one-empty": `[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`,
	} {
		fresh(name)
		got, err = maps.Patch(ctx, name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{FieldManager: "two"})
		if err != nil || len(got.ManagedFields) != 0 {
			t.Errorf("%s: %v, %v", name, err, owners(got.ObjectMeta))
		}
		// The next apply finds the old fields with a manager called before-first-apply.
		got = a.must(a.maps(name, "three", `{"c":"3"}`, false))
		if !slices.Equal(owners(got.ObjectMeta), []string{"before-first-apply Update", "three Apply"}) {
			t.Errorf("%s, then applied: %v", name, owners(got.ObjectMeta))
		}
	}
	fresh("null")
	got, err = maps.Patch(ctx, "null", types.MergePatchType, []byte(`{"metadata":{"managedFields":null}}`),
		metav1.PatchOptions{FieldManager: "two"})
	if err != nil || !slices.Equal(owners(got.ObjectMeta), []string{"one Apply"}) {
		t.Errorf("null: %v, %v", err, owners(got.ObjectMeta))
	}
	// Entries that make no sense are ignored: what is there stays.
	fresh("wrong")
	running.Call(t, "PATCH", "/api/v1/namespaces/default/configmaps/wrong",
		`{"metadata":{"managedFields":[{"manager":"x","operation":"Steal","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{}}]}}`,
		"Content-Type", servertest.MergePatch).
		Wants(t, "no such operation", 200, `"managedFields":[{"manager":"one","operation":"Apply"`)
	// An entry of an unknown version is dropped.
	fresh("old")
	got, err = maps.Patch(ctx, "old", types.MergePatchType,
		[]byte(
			`{"metadata":{"managedFields":[{"manager":"x","operation":"Update","apiVersion":"v0alpha1","time":"2020-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]}}`),
		metav1.PatchOptions{FieldManager: "two"})
	if err != nil || slices.Contains(owners(got.ObjectMeta), "x Update") {
		t.Errorf("entry of an unknown version: %v, %v", err, owners(got.ObjectMeta))
	}
}

// TestApplyMigration goes from client-side to server-side apply as kubectl does.
func TestApplyMigration(t *testing.T) {
	r := servertest.Start(t, nil)
	ctx := t.Context()
	maps := r.Clients(t).CoreV1().ConfigMaps("default")
	const last = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{},"name":"m","namespace":"default"},"data":{"a":"1","b":"1"}}`
	m := servertest.ConfigMap("m")
	m.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: last}
	m.Data = map[string]string{"a": "1", "b": "1"}
	if _, err := maps.Create(ctx, m, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"}); err != nil {
		t.Fatal(err)
	}
	const next = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":"2"}}`
	opts := metav1.PatchOptions{FieldManager: "kubectl"}
	got, err := maps.Patch(ctx, "m", types.ApplyPatchType, []byte(next), opts)
	if err != nil {
		t.Fatalf("what kubectl applied client-side is no conflict for it: %v", err)
	}
	if got.Data["a"] != "2" {
		t.Errorf("data %v", got.Data)
	}
	// kubectl then hands its old fields to its new entry, by a patch that is its own test of the version.
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(got, sets.New("kubectl-client-side-apply"), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	if got, err = maps.Patch(ctx, "m", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(owners(got.ObjectMeta), []string{"kubectl Apply"}) ||
		!owned(t, got.ObjectMeta, "kubectl", "f:data/f:b") {
		t.Errorf("after the migration: %v", got.ManagedFields)
	}
	if got, err = maps.Patch(ctx, "m", types.ApplyPatchType, []byte(next), opts); err != nil {
		t.Fatal(err)
	}
	if _, there := got.Data["b"]; there {
		t.Errorf("what is no longer applied stayed: %v", got.Data)
	}
}
