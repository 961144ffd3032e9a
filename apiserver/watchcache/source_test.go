// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/objects/objectstest"
	"keelson/apiserver/watchcache"
	"keelson/client"
)

var _ client.Source = (*watchcache.Source)(nil)

func podSource(r objects.Storage) *watchcache.Source {
	return watchcache.NewSource(func(gvr schema.GroupVersionResource) objects.Storage {
		if gvr.Resource == "pods" {
			return r
		}
		return nil
	})
}

// TestInformersShareCache runs client-go's informers over the cache: what they hold is what the cache holds.
func TestInformersShareCache(t *testing.T) {
	c := watchcache.New(watchcache.Config{Store: objectstest.NewStore(t)})
	r := c.Resource(objectstest.Pods())
	run(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	first, _, err := r.Create(ctx, objectstest.Pod("ns/a", "app=x"))
	if err != nil {
		t.Fatal(err)
	}
	cl, err := client.InProcess(http.NotFoundHandler(), podSource(r), "test")
	if err != nil {
		t.Fatal(err)
	}
	f := cl.Informers(0, client.Scope{})
	events := make(chan string, 10)
	pods := f.Core().V1().Pods()
	if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { events <- "add " + obj.(*corev1.Pod).Name },
		UpdateFunc: func(_, obj any) { events <- "update " + obj.(*corev1.Pod).Spec.NodeName },
		DeleteFunc: func(obj any) { events <- "delete " + obj.(*corev1.Pod).Name },
	}); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	f.StartWithContext(running)
	defer f.Shutdown()
	defer stop()
	if err := f.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		t.Fatal(err)
	}
	if got, err := pods.Lister().Pods("ns").Get("a"); err != nil || got != first.Object {
		t.Errorf("lister: got %p, %v; want the cache's object %p", got, err, first.Object)
	}
	if _, _, _, err := r.Update(ctx, "ns", "a", false, func(_ context.Context, cur kind.Object) (kind.Object, error) {
		p := cur.DeepCopyObject().(*corev1.Pod)
		p.Spec.NodeName = "n1"
		return p, nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Delete(ctx, "ns", "a", nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"add a", "update n1", "delete a"} {
		if got := <-events; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSource(t *testing.T) {
	c := watchcache.New(watchcache.Config{Store: objectstest.NewStore(t)})
	r := c.Resource(objectstest.Pods())
	run(t, c)
	s := podSource(r)
	ctx := t.Context()
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	a, _, err := r.Create(ctx, objectstest.Pod("ns/a", "app=x"))
	if err != nil {
		t.Fatal(err)
	}
	items, rv, err := s.List(ctx, pods, "ns", metav1.ListOptions{LabelSelector: "app=x", Limit: 1})
	if err != nil || len(items) != 1 || items[0] != a.Object || rv != a.Object.GetResourceVersion() {
		t.Errorf("list: got %v at %s, %v", items, rv, err)
	}
	_, _, err = s.List(ctx, pods, "ns", metav1.ListOptions{LabelSelector: "app in"})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("bad selector: got %v", err)
	}
	if _, err := s.Watch(ctx, corev1.SchemeGroupVersion.WithResource("nodes"), "", metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("watch of a resource that is not served: got %v", err)
	}
	seconds := int64(0)
	w, err := s.Watch(ctx, pods, "", metav1.ListOptions{ResourceVersion: rv, TimeoutSeconds: &seconds})
	if err != nil {
		t.Fatal(err)
	}
	if ev, ok := <-w.ResultChan(); ok {
		t.Errorf("watch whose time is over: got %v", ev)
	}
	w, err = s.Watch(ctx, pods, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ev := <-w.ResultChan(); ev.Type != watch.Added || ev.Object != a.Object {
		t.Errorf("got %v", ev)
	}
	w.Stop()
	w.Stop()
	for range w.ResultChan() {
		t.Error("event after Stop")
	}
}
