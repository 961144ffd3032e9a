// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/objects/objectstest"
	"keelson/apiserver/watchcache"
	"keelson/lib/waittest"
	"keelson/store"
)

func start(t testing.TB, c watchcache.Config) (*watchcache.Cache, *watchcache.Resource) {
	t.Helper()
	cache := watchcache.New(c)
	r := cache.Resource(objectstest.Pods())
	run(t, cache)
	return cache, r
}

func create(t testing.TB, r objects.Storage, key string) *objects.Entry {
	t.Helper()
	e, _, err := r.Create(t.Context(), objectstest.Pod(key))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// bind sets a pod's node.
func bind(t testing.TB, r objects.Storage, ns, name, node string) *objects.Entry {
	t.Helper()
	entry, _, _, err := r.Update(t.Context(), ns, name, false, objects.Replace(func(
		_ context.Context, cur kind.Object,
	) (kind.Object, error) {
		p := cur.DeepCopyObject().(*corev1.Pod)
		p.Spec.NodeName = node
		p.Generation++
		return p, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

func since(e *objects.Entry) objects.ListQuery {
	q := objectstest.Everything()
	q.ResourceVersion = e.Object.GetResourceVersion()
	return q
}

// TestSlowWatcherIsCut has one watcher that never reads: it loses its watch, the other loses nothing.
func TestSlowWatcherIsCut(t *testing.T) {
	st := objectstest.NewStore(t)
	_, resource := start(t, watchcache.Config{Store: st})
	first := create(t, resource, "ns/a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow, err := resource.Watch(ctx, since(first))
	if err != nil {
		t.Fatal(err)
	}
	quick, err := resource.Watch(ctx, since(first))
	if err != nil {
		t.Fatal(err)
	}
	const n = 20_000
	seen := make(chan int)
	go func() { // ends after n events
		got := 0
		for got < n {
			if _, ok := <-quick.Events(); !ok {
				break
			}
			got++
		}
		seen <- got
	}()
	for i := range n {
		bind(t, resource, "ns", "a", fmt.Sprint(i))
	}
	if got := <-seen; got != n {
		t.Errorf("the quick watcher saw %d events, want %d", got, n)
	}
	got := 0
	for range slow.Events() {
		got++
	}
	if err := slow.Err(); err != nil || got >= n {
		t.Errorf("the slow watcher saw %d events and ended with %v, want fewer than %d and no error", got, err, n)
	}
}

func TestBookmarks(t *testing.T) {
	st := objectstest.NewStore(t)
	_, r := start(t, watchcache.Config{Store: st, BookmarkEvery: time.Nanosecond})
	first := create(t, r, "ns/a")
	q := since(first)
	q.Bookmarks = true
	q.Fields = fields.ParseSelectorOrDie("spec.nodeName=none")
	watcher, err := r.Watch(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	next := create(t, r, "ns/b")
	ev := <-watcher.Events()
	if got := ev.Entry.Object.GetResourceVersion(); ev.Type != watch.Bookmark ||
		got != next.Object.GetResourceVersion() {
		t.Errorf("got %s at %s, want a bookmark at %s", ev.Type, got, next.Object.GetResourceVersion())
	}
	if _, ok := ev.Entry.Object.(*corev1.Pod); !ok || ev.Entry.Object.GetAnnotations() != nil {
		t.Errorf("bookmark is %T %v, want a bare pod", ev.Entry.Object, ev.Entry.Object)
	}
	// another resource moves the cluster on
	if _, err := st.Create(t.Context(), "/registry/other/x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	ev = <-watcher.Events()
	if want := objects.FormatRevision(next.Revision + 1); ev.Type != watch.Bookmark ||
		ev.Entry.Object.GetResourceVersion() != want {
		t.Errorf("got %s at %s, want a bookmark at %s", ev.Type, ev.Entry.Object.GetResourceVersion(), want)
	}
}

func TestBookmarkBeforeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, resource := start(t, watchcache.Config{Store: objectstest.NewStore(t)})
		first := create(t, resource, "ns/a")
		ctx, cancel := context.WithTimeout(t.Context(), 2100*time.Millisecond)
		defer cancel()
		q := since(first)
		q.Bookmarks = true
		q.Namespace = "none"
		watcher, err := resource.Watch(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		last := create(t, resource, "ns/b")
		ev, ok := <-watcher.Events()
		if !ok || ev.Type != watch.Bookmark ||
			ev.Entry.Object.GetResourceVersion() != last.Object.GetResourceVersion() {
			t.Errorf("got %+v, want a bookmark at %d", ev, last.Revision)
		}
		cancel()
		for range watcher.Events() {
			t.Error("event after the end")
		}
	})
}

// TestResumeAfterRestart resumes a watch on a new cache over the same store: the history comes from the store.
func TestResumeAfterRestart(t *testing.T) {
	st := objectstest.NewStore(t)
	_, before := start(t, watchcache.Config{Store: st})
	entry := create(t, before, "ns/a")
	b := create(t, before, "ns/b")
	a2 := bind(t, before, "ns", "a", "n1")
	gone, _, err := before.Delete(t.Context(), "ns", "b", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, after := start(t, watchcache.Config{Store: st})
	for range 2 { // the second finds the window extended
		ctx, cancel := context.WithCancel(t.Context())
		watcher, err := after.Watch(ctx, since(entry))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []struct {
			typ watch.EventType
			e   *objects.Entry
		}{{watch.Added, b}, {watch.Modified, a2}, {watch.Deleted, gone}} {
			ev, ok := <-watcher.Events()
			if !ok {
				t.Fatalf("watch ended: %v", watcher.Err())
			}
			if ev.Type != want.typ || ev.Entry.Object.GetResourceVersion() != want.e.Object.GetResourceVersion() {
				t.Errorf("got %s at %s, want %s at %d", ev.Type, ev.Entry.Object.GetResourceVersion(), want.typ,
					want.e.Revision)
			}
		}
		cancel()
		for range watcher.Events() {
			t.Error("event after the end")
		}
	}
	if err := st.Compact(t.Context(), gone.Revision); err != nil {
		t.Fatal(err)
	}
	_, late := start(t, watchcache.Config{Store: st})
	w, err := late.Watch(t.Context(), since(entry))
	if err != nil {
		t.Fatal(err)
	}
	for range w.Events() {
		t.Error("event from a compacted history")
	}
	want := fmt.Sprintf("too old resource version: %d (%d)", entry.Revision, gone.Revision)
	if err := w.Err(); !apierrors.IsResourceExpired(err) || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

// slowStore ends its first watch as one does that fell behind.
type slowStore struct {
	store.Store
	mu     sync.Mutex
	failed bool
	fail   chan struct{}
}

type endedWatch struct {
	store.Watcher
	err error
}

func (w endedWatch) Err() error { return w.err }

func (s *slowStore) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed {
		return s.Store.Watch(ctx, prefix, from)
	}
	s.failed = true
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the test
		<-s.fail
		cancel()
	}()
	w, err := s.Store.Watch(ctx, prefix, from)
	return endedWatch{w, store.ErrSlow}, err
}

func TestCacheFallsBehind(t *testing.T) {
	st := &slowStore{Store: objectstest.NewStore(t), fail: make(chan struct{})}
	_, resource := start(t, watchcache.Config{Store: st})
	a := create(t, resource, "ns/a")
	if _, err := resource.Get(t.Context(), "ns", "a", ""); err != nil {
		t.Fatal(err)
	}
	w, err := resource.Watch(t.Context(), since(a))
	if err != nil {
		t.Fatal(err)
	}
	close(st.fail)
	for range w.Events() {
		t.Error("event though nothing changed")
	}
	create(t, resource, "ns/b")
	reloaded(t, resource, 2)
}

// reloaded waits until the cache is loaded again, with n objects.
func reloaded(t *testing.T, resource *watchcache.Resource, n int) {
	t.Helper()
	waittest.Right(t, "the cache is loaded again", func() string {
		list, err := resource.List(t.Context(), objectstest.Everything())
		if err != nil {
			return err.Error()
		}
		if len(list.Items) != n {
			t.Fatalf("after loading again: got %d pods, want %d", len(list.Items), n)
		}
		return ""
	})
}

// stuckStore is a store that falls behind and then cannot be read again until it may.
type stuckStore struct {
	slowStore
	lists chan struct{}
	asked chan struct{}
	loads atomic.Int32
}

func (s *stuckStore) List(ctx context.Context, r store.Range) (store.Page, error) {
	if s.loads.Add(1) == 2 {
		close(s.asked)
		<-s.lists
	}
	return s.Store.List(ctx, r)
}

// TestReloadRefuses: while the cache is loaded again lists and watches get 429 with a time to wait, pages and objects
// wait for it, and afterwards requests are served as usual.
func TestReloadRefuses(t *testing.T) {
	st := &stuckStore{
		slowStore: slowStore{Store: objectstest.NewStore(t), fail: make(chan struct{})},
		lists:     make(chan struct{}),
		asked:     make(chan struct{}),
	}
	_, resource := start(t, watchcache.Config{Store: st})
	if _, err := resource.Get(t.Context(), "ns", "none", ""); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	close(st.fail)
	<-st.asked
	_, listErr := resource.List(t.Context(), objectstest.Everything())
	_, watchErr := resource.Watch(t.Context(), objectstest.Everything())
	for what, err := range map[string]error{"list": listErr, "watch": watchErr} {
		seconds, ok := apierrors.SuggestsClientDelay(err)
		if !apierrors.IsTooManyRequests(err) || !ok || seconds < 1 {
			t.Errorf("%s: got %v, %d s; want 429 and a second at least", what, err, seconds)
		}
	}
	page := objectstest.Everything()
	page.Limit = 1
	if _, err := resource.List(t.Context(), page); err != nil {
		t.Errorf("a page: %v", err)
	}
	close(st.lists)
	create(t, resource, "ns/a")
	reloaded(t, resource, 1)
}

func TestUnreadableObjects(t *testing.T) {
	st := objectstest.NewStore(t)
	for _, key := range []string{
		"/registry/pods/ns/bad", "/registry/pods", "/registry", "/elsewhere/pods/x", "/registry/pods/short",
	} {
		if _, err := st.Create(t.Context(), key, []byte("garbage")); err != nil {
			t.Fatal(err)
		}
	}
	_, r := start(t, watchcache.Config{Store: st})
	create(t, r, "ns/a")
	w, err := st.Create(t.Context(), "/registry/pods/ns/worse", []byte("k8s\x00garbage"))
	if err != nil {
		t.Fatal(err)
	}
	q := objectstest.Everything()
	q.ResourceVersion = objects.FormatRevision(w.Revision) // or later
	list, err := r.List(t.Context(), q)
	if err != nil || len(list.Items) != 1 || list.Revision != w.Revision {
		t.Fatalf("got %+v, %v; want the one that can be read, at %d", list, err, w.Revision)
	}
}

func TestEndReleasesEverything(t *testing.T) {
	st := objectstest.NewStore(t)
	before := runtime.NumGoroutine()
	c := watchcache.New(watchcache.Config{Store: st})
	resource := c.Resource(objectstest.Pods())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() { done <- c.Run(ctx, func() { close(ready) }) }() // ends with ctx
	<-ready
	var watches []objects.Watch
	for i := range 50 {
		q := objectstest.Everything()
		q.Fields = fields.ParseSelectorOrDie(fmt.Sprintf("spec.nodeName=n%d", i%7))
		w, err := resource.Watch(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, w := range watches {
		if _, ok := <-w.Events(); ok || w.Err() != nil {
			t.Errorf("watch after the end: open %v, error %v", ok, w.Err())
		}
	}
	if _, err := resource.Watch(context.Background(), objectstest.Everything()); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("Watch after the end: got %v", err)
	}
	waittest.Right(t, "goroutines end", func() string { // the store's own watch takes a moment
		if n := runtime.NumGoroutine(); n > before+1 {
			return fmt.Sprintf("%d are left, %d were before", n, before)
		}
		return ""
	})
}

func TestAllAndServices(t *testing.T) {
	st := objectstest.NewStore(t)
	cache := watchcache.New(watchcache.Config{Store: st})
	pods := cache.Resource(objectstest.Pods())
	cfg := objects.Config{
		GVK:        corev1.SchemeGroupVersion.WithKind("Service"),
		New:        func() kind.Object { return &corev1.Service{} },
		Namespaced: true,
		Prefix:     objects.StorePrefix(corev1.Resource("services")),
	}
	services := cache.Resource(cfg)
	cfg.GVK = corev1.SchemeGroupVersion.WithKind("Endpoints")
	cfg.New = func() kind.Object { return &corev1.Endpoints{} }
	cfg.Prefix = objects.StorePrefix(corev1.Resource("endpoints"))
	endpoints := cache.Resource(cfg)
	run(t, cache)
	create(t, pods, "a/x")
	create(t, pods, "b/x")
	svc := &corev1.Service{}
	svc.Namespace = "a"
	svc.Name = "s"
	if _, r, err := services.Create(t.Context(), svc); err != nil || r.Key != "/registry/services/specs/a/s" {
		t.Errorf("service: got key %s, %v", r.Key, err)
	}
	ep := &corev1.Endpoints{}
	ep.Namespace = "a"
	ep.Name = "s"
	if _, r, err := endpoints.Create(t.Context(), ep); err != nil || r.Key != "/registry/services/endpoints/a/s" {
		t.Errorf("endpoints: got key %s, %v", r.Key, err)
	}
	for what, want := range map[string]int{"": 2, "a": 1, "none": 0} {
		l, err := pods.List(t.Context(), objects.ListQuery{
			Namespace: what,
			Labels:    labels.Everything(),
			Fields:    fields.Everything(),
		})
		n := 0
		for range pods.All(what) {
			n++
		}
		if err != nil || n != want || len(l.Items) != want {
			t.Errorf("namespace %q: All gave %d, List %d, %v; want %d", what, n, len(l.Items), err, want)
		}
	}
	for _, r := range []*watchcache.Resource{services, endpoints} {
		if l, err := r.List(t.Context(), objectstest.Everything()); err != nil || len(l.Items) != 1 {
			t.Errorf("got %d, %v; want 1", len(l.Items), err)
		}
	}
	if cache.Revision() == 0 || cache.Resource(objectstest.Pods()) != pods {
		t.Error("asking again for a resource gave another one")
	}
}

// TestUnreadable: a list that lacks an unreadable object is an error, except for clients that accept what can be read.
// No client is answered that such an object is absent. A write repairs it, and it can be deleted unread.
func TestUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := objectstest.NewStore(t)
		if _, err := st.Create(t.Context(), "/registry/pods/ns/old", []byte("junk")); err != nil { // read at the start
			t.Fatal(err)
		}
		_, resource := start(t, watchcache.Config{Store: st})
		create(t, resource, "ns/new")
		good, _, err := st.Get(t.Context(), "/registry/pods/ns/new", 0)
		if err != nil {
			t.Fatal(err)
		}
		// learned of later
		if _, err := st.Update(t.Context(), good.Key, []byte(`{"kind":"Secret","apiVersion":"v1"}`),
			good.Revision); err != nil {
			t.Fatal(err)
		}
		_, err = resource.List(t.Context(), objectstest.Everything())
		status, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok || status.ErrStatus.Reason != metav1.StatusReasonStoreReadError ||
			len(status.ErrStatus.Details.Causes) != 2 ||
			!strings.HasPrefix(err.Error(), "failed to read one or more pods from the storage: [StorageError: "+
				"corrupt object, Code: 7, Key: /registry/pods/ns/new, ResourceVersion: 0, AdditionalErrorMsg: object "+
				"not decodable revision=") {
			t.Errorf("a list that lacks something: %v", err)
		}
		q := objectstest.Everything()
		q.ResourceVersion = "0"
		if l, err := resource.List(t.Context(), q); err != nil || len(l.Items) != 0 {
			t.Errorf("what can be read: %v", err)
		}
		for _, name := range []string{"old", "new"} {
			_, err := resource.Get(t.Context(), "ns", name, "")
			_, _, derr := resource.Delete(t.Context(), "ns", name, nil)
			if !apierrors.IsInternalError(err) || !apierrors.IsInternalError(derr) {
				t.Errorf("%s: get %v, delete %v; want internal errors", name, err, derr)
			}
			key := "/registry/pods/ns/" + name
			bad, _, err := st.Get(t.Context(), key, 0)
			if err == nil {
				_, err = st.Update(t.Context(), key, good.Value, bad.Revision)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := resource.Get(t.Context(), "ns", name, ""); err != nil {
				t.Errorf("%s, repaired: %v", name, err)
			}
			if _, err := st.Create(t.Context(), key+"2", []byte("junk")); err != nil {
				t.Fatal(err)
			}
			for _, dry := range []bool{true, false} {
				if _, err := resource.DeleteCorrupt(t.Context(), "ns", name+"2", dry); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := resource.DeleteCorrupt(t.Context(), "ns", name, false); !apierrors.IsConflict(err) {
				t.Errorf("an object that can be read was to be removed unread: %v", err)
			}
			if _, err := resource.Get(t.Context(), "ns", name+"2", ""); !apierrors.IsNotFound(err) {
				t.Errorf("%s2, deleted: %v; want not found", name, err)
			}
		}
	})
}
