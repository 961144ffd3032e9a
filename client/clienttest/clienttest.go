// SPDX-License-Identifier: Apache-2.0

// Package clienttest gives tests client-go's fake clients with watches that deliver
// all events. As client-go makes them, a watch panics when 100 events are unread, and a
// deletion between an informer's list and its watch is never delivered.
package clienttest

import (
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	metafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// unread events are held by a watch; the fake panics beyond them.
const unread = 1 << 13

// kept lists of a resource are compared with what is there when their watch begins.
const kept = 16

var enlarge = sync.OnceFunc(func() { watch.DefaultChanSize = unread })

// New returns a clientset that holds objs.
func New(objs ...runtime.Object) *fake.Clientset {
	f := fake.NewClientset(objs...)
	Complete(&f.Fake, f.Tracker())
	return f
}

// NewMetadata returns a metadata client that holds objs, whose kinds are their own.
func NewMetadata(objs ...runtime.Object) *metafake.FakeMetadataClient {
	s := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(s); err != nil {
		panic(err) // a scheme that is empty takes all types
	}
	f := metafake.NewSimpleMetadataClient(s, objs...)
	Complete(&f.Fake, f.Tracker())
	return f
}

// patience is how long Until waits; a test that passes does not wait for it.
const patience = 2 * time.Minute

// Until waits until ok, which may depend on objects of one resource only: it is asked at first and after each change to
// them.
func Until(
	t testing.TB, objects clienttesting.ObjectTracker, resource schema.GroupVersionResource, what string,
	ok func() bool,
) {
	t.Helper()
	enlarge()
	w, err := objects.Watch(resource, metav1.NamespaceAll)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for !ok() {
		select {
		case <-w.ResultChan():
		case <-late.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// Complete makes the watches of f deliver everything that happens to objects, its tracker.
// It comes before the first watch and before other reactors for lists and watches.
func Complete(f *clienttesting.Fake, objects clienttesting.ObjectTracker) {
	enlarge()
	c := &complete{objects: objects, react: clienttesting.ObjectReaction(objects), lists: map[place][]list{}}
	f.PrependReactor("list", "*", c.list)
	f.PrependWatchReactor("*", c.watch)
}

// complete remembers informers' lists. Its methods are reactors, which the fake calls one at a time.
type complete struct {
	objects clienttesting.ObjectTracker
	react   clienttesting.ReactionFunc
	lists   map[place][]list
}

type place struct {
	resource  schema.GroupVersionResource
	namespace string
}

type list struct {
	version string
	items   []runtime.Object
}

func (c *complete) list(action clienttesting.Action) (bool, runtime.Object, error) {
	handled, all, err := c.react(action)
	l, ok := action.(clienttesting.ListActionImpl)
	if err != nil || !handled || !ok || l.ListOptions.ResourceVersion == "" { // informers name one
		return handled, all, err
	}
	m, err := meta.ListAccessor(all)
	if err != nil {
		return true, nil, err
	}
	items, err := meta.ExtractList(all.DeepCopyObject())
	if err != nil {
		return true, nil, err
	}
	at := place{action.GetResource(), action.GetNamespace()}
	lists := append(c.lists[at], list{m.GetResourceVersion(), items})
	c.lists[at] = lists[max(0, len(lists)-kept):]
	return true, all, nil
}

// watch delivers first the deletions of objects in the list whose version it begins at. Deletions do not change the
// fake's version: what was gone before one of two lists of one version is delivered to both.
func (c *complete) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	var opts metav1.ListOptions
	if w, ok := action.(clienttesting.WatchActionImpl); ok {
		opts = w.ListOptions
	}
	watcher, err := c.objects.Watch(action.GetResource(), action.GetNamespace(), opts)
	if err != nil {
		return true, nil, err
	}
	deleted := map[string]bool{}
	for _, l := range slices.Backward(c.lists[place{action.GetResource(), action.GetNamespace()}]) {
		if l.version != opts.ResourceVersion {
			continue
		}
		for _, obj := range l.items {
			m, err := meta.Accessor(obj)
			if err != nil {
				return true, nil, err
			}
			key := m.GetNamespace() + "/" + m.GetName()
			if deleted[key] {
				continue
			}
			if _, err := c.objects.Get(action.GetResource(), m.GetNamespace(), m.GetName()); apierrors.IsNotFound(err) {
				deleted[key] = true
				watcher.(*watch.RaceFreeFakeWatcher).Delete(obj.DeepCopyObject())
			}
		}
	}
	return true, watcher, nil
}
