// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/servertest"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/auth/authz/bootstrap"
	"keelson/client"
)

// TestSourceTellsSelectors: an agent in this process has the same rights as over HTTPS: a kubelet watches its own node
// and pods, and no other.
func TestSourceTellsSelectors(t *testing.T) {
	running := servertest.Start(t, func(c *servertest.Setup) {
		c.Parts = func(r *access.Reader) (apiserver.Parts, error) {
			return apiserver.Parts{
				Authenticators: []auth.Authenticator{authn.Anonymous{}},
				Authorizer: authz.Union{
					authz.Node{Pods: r.PodsOn, Objects: r, Rules: bootstrap.NodeRules()},
					authz.Masters{},
				},
			}, nil
		}
	})
	src := running.Source(&auth.User{
		Name:   "system:node:n1",
		Groups: []string{auth.Nodes, auth.Authenticated},
		How:    auth.InProcess,
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		resource string
		opts     metav1.ListOptions
		allowed  bool
	}{
		{"nodes", metav1.ListOptions{FieldSelector: "metadata.name=n1"}, true},
		{"nodes", metav1.ListOptions{FieldSelector: "metadata.name=n2"}, false},
		{"nodes", metav1.ListOptions{}, false},
		{"pods", metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}, true},
		{"pods", metav1.ListOptions{FieldSelector: "spec.nodeName=n2"}, false},
		{"pods", metav1.ListOptions{}, false},
	} {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: c.resource}
		_, _, err := src.List(ctx, gvr, "", c.opts)
		if c.allowed && err != nil || !c.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("list %s %q: %v; want it allowed: %v", c.resource, c.opts.FieldSelector, err, c.allowed)
		}
		w, err := src.Watch(ctx, gvr, "", c.opts)
		if c.allowed && err != nil || !c.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("watch %s %q: %v; want it allowed: %v", c.resource, c.opts.FieldSelector, err, c.allowed)
		}
		if err == nil {
			w.Stop()
		}
	}
}

// TestSource: what a list or a watch in this process answers, and how a watch ends.
func TestSource(t *testing.T) {
	r := servertest.Start(t, nil)
	src := r.Source(servertest.Admin)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	maps := corev1.SchemeGroupVersion.WithResource("configmaps")
	made, err := r.Clients(t).CoreV1().ConfigMaps("default").Create(ctx, servertest.ConfigMap("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byName := metav1.ListOptions{FieldSelector: "metadata.name=a"}
	items, rv, err := src.List(ctx, maps, "default", byName)
	if err != nil || len(items) != 1 || items[0].(*corev1.ConfigMap).UID != made.UID {
		t.Fatalf("list: got %v, %v", items, err)
	}
	if _, _, err := src.List(ctx, maps, "default",
		metav1.ListOptions{LabelSelector: "app in"}); !apierrors.IsBadRequest(err) {
		t.Errorf("bad selector: got %v", err)
	}
	if _, err := src.Watch(ctx, corev1.SchemeGroupVersion.WithResource("nothings"), "",
		metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("watch of a resource that is not served: got %v", err)
	}
	byName.ResourceVersion = rv
	byName.TimeoutSeconds = new(int64(1))
	watcher, err := src.Watch(ctx, maps, "default", byName)
	if err != nil {
		t.Fatal(err)
	}
	if ev, ok := <-watcher.ResultChan(); ok || ctx.Err() != nil {
		t.Errorf("a watch for one second: got %v, want its end", ev)
	}
	byName.ResourceVersion = ""
	byName.TimeoutSeconds = new(int64(0))
	if watcher, err = src.Watch(ctx, maps, "default", byName); err != nil {
		t.Fatal(err)
	}
	if ev := <-watcher.ResultChan(); ev.Type != watch.Added || ev.Object != items[0] {
		t.Errorf("a watch of what there is: got %v, want the object that the list has", ev)
	}
	watcher.Stop()
	watcher.Stop()
	for ev := range watcher.ResultChan() {
		t.Errorf("event after Stop: %v", ev)
	}
}

// TestInformersShareCache: what client-go's informers hold in this process is what the cache holds.
func TestInformersShareCache(t *testing.T) {
	r := servertest.Start(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	maps := r.Clients(t).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx, servertest.ConfigMap("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	src := r.Source(servertest.Admin)
	cl, err := client.InProcess(http.NotFoundHandler(), src, "test")
	if err != nil {
		t.Fatal(err)
	}
	informers := cl.Informers(0, client.Scope{})
	informer := coreinformers.New(informers.Scoped()).ConfigMaps()
	events := make(chan string, 100)
	note := func(what string, obj any) {
		if m := obj.(*corev1.ConfigMap); m.Namespace == "default" && m.Name == "a" {
			events <- what + m.Data["k"]
		}
	}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { note("add", obj) },
		UpdateFunc: func(_, obj any) { note("update ", obj) },
		DeleteFunc: func(obj any) { note("delete ", obj) },
	}); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	informers.StartWithContext(running)
	defer informers.Shutdown()
	defer stop()
	if !informers.WaitForCacheSync(ctx) {
		t.Fatal("the informer has not listed")
	}
	items, _, err := src.List(ctx, corev1.SchemeGroupVersion.WithResource("configmaps"), "default", metav1.ListOptions{
		FieldSelector: "metadata.name=a",
	})
	if err != nil || len(items) != 1 {
		t.Fatalf("list: %v, %v", items, err)
	}
	if got, err := informer.Lister().ConfigMaps("default").Get("a"); err != nil || got != items[0] {
		t.Errorf("lister: got %p, %v; want the cache's object %p", got, err, items[0])
	}
	changed := servertest.ConfigMap("a")
	changed.Data = map[string]string{"k": "v"}
	if _, err := maps.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"add", "update v", "delete v"} {
		select {
		case got := <-events:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("no %q", want)
		}
	}
}

// TestHandedOver: what a client in this process gets for a pod that it creates is what it gets when it reads it, and
// it gets the warnings.
func TestHandedOver(t *testing.T) {
	r := servertest.Start(t, nil)
	cl, err := client.InProcess(r.As(servertest.Admin), nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"plain":  func(*corev1.Pod) {},
		"warned": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"beta.kubernetes.io/os": "linux"} },
		"empty": func(p *corev1.Pod) {
			p.Labels = map[string]string{}
			p.Spec.NodeSelector = map[string]string{}
		},
	} {
		p := servertest.Pod(name)
		change(p)
		p.Kind = ""
		p.APIVersion = ""
		made, err := cl.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		read, err := cl.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(read, made); diff != "" {
			t.Errorf("%s: (-read +made):\n%s", name, diff)
		}
		made.Spec.Containers[0].Image = "changed"
		if again, err := cl.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil ||
			again.Spec.Containers[0].Image == "changed" {
			t.Errorf("%s: the caller's change reaches the server: %v", name, err)
		}
	}
	b := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "plain"},
		Target: corev1.ObjectReference{
			Kind: "Node",
			Name: "n1",
		},
	}
	if err := cl.CoreV1().Pods("default").Bind(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cl.CoreV1().Pods("default").Bind(t.Context(), b, metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("second binding: %v, want a conflict", err)
	}
}
