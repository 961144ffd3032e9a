// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

// TestPutCreates: kinds that a PUT may create.
func TestPutCreates(t *testing.T) {
	running := servertest.Start(t, nil)
	for resource, body := range map[string]string{
		"limitranges": `{"apiVersion":"v1","kind":"LimitRange","metadata":{"name":"new"},"spec":{"limits":[]}}`,
		"endpoints":   `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"new"},"subsets":[]}`,
	} {
		running.Call(t, "PUT", "/api/v1/namespaces/default/"+resource+"/new", body).
			Wants(t, resource, 201, `"name":"new"`)
	}
}

// TestEmptyBytes: a key without a value holds no bytes; programs that decode base64 fail on null.
func TestEmptyBytes(t *testing.T) {
	running := servertest.Start(t, nil)
	const namespace = "/api/v1/namespaces/default/"
	running.Call(t, "POST", namespace+"secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},
		"data":{"password":null}}`).Wants(t, "secret", 201, `"data":{"password":""}`)
	running.Call(t, "POST", namespace+"configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},
		"binaryData":{"a":null}}`).Wants(t, "config map", 201, `"binaryData":{"a":""}`)
	running.Call(t, "PUT", namespace+"configmaps/c", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},
		"binaryData":{"b":null}}`).Wants(t, "update", 200, `"binaryData":{"b":""}`)
}

// TestLifeOfAPod goes through every verb, in JSON and in protobuf.
func TestLifeOfAPod(t *testing.T) {
	servertest.NoLeaks(t)
	r := servertest.Start(t, nil)
	for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(media, func(t *testing.T) {
			cfg := rest.CopyConfig(r.Rest)
			cfg.ContentType = media
			cfg.AcceptContentTypes = media
			c, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				t.Fatal(err)
			}
			lifeOfAPod(t, c)
		})
	}
}

func lifeOfAPod(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	pods := c.CoreV1().Pods("default")
	before, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	made, err := pods.Create(ctx, servertest.Pod("web"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.UID == "" || made.ResourceVersion == "" || made.CreationTimestamp.IsZero() ||
		made.Status.Phase != corev1.PodPending {
		t.Errorf("created pod lacks what the server sets: %+v", made.ObjectMeta)
	}
	if len(made.ManagedFields) != 1 || made.ManagedFields[0].Manager != "tester" ||
		made.ManagedFields[0].Operation != "Update" {
		t.Errorf("managedFields of a created pod: %v", made.ManagedFields)
	}
	expect(t, watcher, watch.Added, made.ResourceVersion)

	if _, err := pods.Create(ctx, servertest.Pod("web"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) ||
		err.Error() != `pods "web" already exists` {
		t.Errorf("second create: %v", err)
	}
	got, err := pods.Get(ctx, "web", metav1.GetOptions{})
	if err != nil || got.UID != made.UID {
		t.Fatalf("get: %v, uid %s, want %s", err, got.UID, made.UID)
	}
	got.Labels["tier"] = "front"
	updated, err := pods.Update(ctx, got, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, watcher, watch.Modified, updated.ResourceVersion)
	if _, err := pods.Update(ctx, got, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v", err)
	}
	same, err := pods.Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil || same.ResourceVersion != updated.ResourceVersion {
		t.Errorf("update without a change: %v, version %s, want %s", err, same.ResourceVersion, updated.ResourceVersion)
	}
	for _, p := range []struct {
		kind types.PatchType
		body string
	}{
		{types.StrategicMergePatchType, `{"metadata":{"labels":{"p":"strategic"}}}`},
		{types.MergePatchType, `{"metadata":{"labels":{"p":"merge"}}}`},
		{types.JSONPatchType, `[{"op":"replace","path":"/metadata/labels/p","value":"json"}]`},
		{types.ApplyPatchType, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","labels":{"applied":"yes"}}}`},
	} {
		opts := metav1.PatchOptions{FieldManager: "patcher"}
		patched, err := pods.Patch(ctx, "web", p.kind, []byte(p.body), opts)
		if err != nil {
			t.Fatalf("patch %s: %v", p.kind, err)
		}
		expect(t, watcher, watch.Modified, patched.ResourceVersion)
	}
	got, err = pods.Get(ctx, "web", metav1.GetOptions{})
	if err != nil || got.Labels["p"] != "json" || got.Labels["applied"] != "yes" {
		t.Errorf("after patches: %v, labels %v", err, got.Labels)
	}
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=web", FieldSelector: "status.phase=Pending"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "web" || list.ResourceVersion == "" {
		t.Errorf("list: %v, %d items", err, len(list.Items))
	}
	zero := int64(0)
	if err := pods.Delete(ctx, "web", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	expect(t, watcher, watch.Deleted, "")
	if _, err := pods.Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) ||
		err.Error() != `pods "web" not found` {
		t.Errorf("get after delete: %v", err)
	}
}

func expect(t *testing.T, w watch.Interface, want watch.EventType, version string) {
	t.Helper()
	ev, ok := <-w.ResultChan()
	if !ok {
		t.Fatalf("watch ended, want %s", want)
	}
	p, isPod := ev.Object.(*corev1.Pod)
	if ev.Type != want || !isPod || version != "" && p.ResourceVersion != version {
		t.Fatalf("watch says %s %T %v, want %s at version %s", ev.Type, ev.Object, ev.Object, want, version)
	}
}
