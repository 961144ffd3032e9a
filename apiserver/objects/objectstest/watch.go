// SPDX-License-Identifier: Apache-2.0

package objectstest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/apiserver/objects"
	"keelson/store"
)

// RunWatch runs the tests of storage beyond Records. open gets a new store.
func RunWatch(t *testing.T, open func(t *testing.T, c objects.Config, s store.Store) objects.Storage) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, s objects.Storage, st store.Store)
	}{
		{"State", testWatchState},
		{"Resume", testWatchResume},
		{"Selectors", testWatchSelectors},
		{"Narrow", testWatchNarrow},
		{"InitialEvents", testWatchInitialEvents},
		{"Expired", testWatchExpired},
		{"Refused", testWatchRefused},
		{"ListThenWatch", testListThenWatch},
		{"Walk", testWalk},
		{"Size", testSize},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := NewStore(t)
				tc.run(t, open(t, Pods(), st), st)
			})
		})
	}
}

// RunShared runs further tests for a cache: all readers get the same entry. Converting storage does not pass them.
func RunShared(t *testing.T, open func(t *testing.T, c objects.Config, s store.Store) objects.Storage) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := NewStore(t)
		testWatchShared(t, open(t, Pods(), st), st)
	})
}

func start(t *testing.T, s objects.Storage, q objects.ListQuery) objects.Watch {
	t.Helper()
	ctx, cancel := context.WithCancel(bounded(t))
	w, err := s.Watch(ctx, q)
	if err != nil {
		t.Fatalf("watch %+v: %v", q, err)
	}
	t.Cleanup(func() {
		cancel()
		for range w.Events() { // until it is closed
		}
	})
	return w
}

func show(ev objects.Event) string {
	o := ev.Entry.Object
	if ev.Type == watch.Bookmark {
		return fmt.Sprintf("BOOKMARK@%s%v", o.GetResourceVersion(), o.GetAnnotations())
	}
	return fmt.Sprintf("%s:%s/%s@%s", ev.Type, o.GetNamespace(), o.GetName(), o.GetResourceVersion())
}

func expect(t *testing.T, w objects.Watch, want ...string) []objects.Event {
	t.Helper()
	var got []objects.Event
	for i, wanted := range want {
		ev, ok := <-w.Events()
		if !ok {
			t.Fatalf("watch ended (%v), want %s", w.Err(), wanted)
		}
		if show(ev) != wanted {
			t.Fatalf("event %d: got %s, want %s", i, show(ev), wanted)
		}
		got = append(got, ev)
	}
	return got
}

func shown(kind string, e *objects.Entry) string {
	return fmt.Sprintf("%s:%s/%s@%s", kind, e.Object.GetNamespace(), e.Object.GetName(), rv(e))
}

func testWatchState(t *testing.T, storage objects.Storage, _ store.Store) {
	a := create(t, storage, Pod("a/one"))
	b := create(t, storage, Pod("b/one"))
	for _, version := range []string{"", "0"} {
		q := Everything()
		q.ResourceVersion = version
		w := start(t, storage, q)
		expect(t, w, shown("ADDED", a), shown("ADDED", b))
	}
	q := where(t, "b", "", "")
	w := start(t, storage, q)
	expect(t, w, shown("ADDED", b))
	c := create(t, storage, Pod("b/two"))
	b2 := change(t, storage, "b/one", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	d := remove(t, storage, "b/one")
	got := expect(t, w, shown("ADDED", c), shown("MODIFIED", b2), shown("DELETED", d))
	want(t, "last state of the deleted pod", nodeOf(got[2].Entry.Object), "n")
	if got[0].At.IsZero() {
		t.Error("an event has no time")
	}
}

func testWatchResume(t *testing.T, storage objects.Storage, _ store.Store) {
	entry := create(t, storage, Pod("ns/a"))
	b := create(t, storage, Pod("ns/b"))
	a2 := change(t, storage, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	gone := remove(t, storage, "ns/b")
	q := Everything()
	q.ResourceVersion = rv(entry)
	w := start(t, storage, q)
	expect(t, w, shown("ADDED", b), shown("MODIFIED", a2), shown("DELETED", gone))
	q.ResourceVersion = rv(gone)
	late := start(t, storage, q)
	c := create(t, storage, Pod("ns/c"))
	expect(t, w, shown("ADDED", c))
	expect(t, late, shown("ADDED", c))

	// A watch of a part only catches up with that part.
	part := func(ns, field string) objects.Watch {
		q := where(t, ns, "", field)
		q.ResourceVersion = rv(entry)
		return start(t, storage, q)
	}
	onNode := part("", "spec.nodeName=n")
	unbound := part("", "spec.nodeName=")
	one := part("ns", "metadata.name=b")
	other := part("other", "")
	d := create(t, storage, Pod("other/d"))
	expect(t, onNode, shown("ADDED", a2))
	expect(t, unbound, shown("ADDED", b), shown("DELETED", a2), shown("DELETED", gone), shown("ADDED", c),
		shown("ADDED", d))
	expect(t, one, shown("ADDED", b), shown("DELETED", gone))
	expect(t, other, shown("ADDED", d))
}

// testWatchSelectors moves a pod into and out of a selection.
func testWatchSelectors(t *testing.T, s objects.Storage, _ store.Store) {
	byLabel := start(t, s, where(t, "", "app=x", ""))
	byField := start(t, s, where(t, "", "", "spec.nodeName!=n1"))
	create(t, s, Pod("ns/other", "app=y"))
	a := create(t, s, Pod("ns/a", "app=x"))
	a2 := change(t, s, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	a3 := change(t, s, "ns/a", func(p *corev1.Pod) { p.Labels["app"] = "z" })
	a4 := change(t, s, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n2" })
	a5 := change(t, s, "ns/a", func(p *corev1.Pod) { p.Labels["app"] = "x" })
	gone := remove(t, s, "ns/a")
	got := expect(t, byLabel, shown("ADDED", a), shown("MODIFIED", a2), shown("DELETED", a3), shown("ADDED", a5),
		shown("DELETED", gone))
	want(t, "DELETED shows the last matching state", got[2].Entry.Object.GetLabels()["app"], "x")
	<-byField.Events() // ns/other
	got = expect(t, byField, shown("ADDED", a), shown("DELETED", a2), shown("ADDED", a4), shown("MODIFIED", a5),
		shown("DELETED", gone))
	want(t, "DELETED shows the last matching state", nodeOf(got[1].Entry.Object), "")
}

// testWatchNarrow watches one object and one node.
func testWatchNarrow(t *testing.T, storage objects.Storage, _ store.Store) {
	one := start(t, storage, where(t, "ns", "", "metadata.name=a"))
	node := start(t, storage, where(t, "", "", "spec.nodeName=n1"))
	unbound := start(t, storage, where(t, "", "", "spec.nodeName="))
	other := start(t, storage, where(t, "other", "", "spec.nodeName=n1"))
	entry := create(t, storage, Pod("ns/a"))
	b := create(t, storage, Pod("ns/b"))
	a2 := change(t, storage, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	b2 := change(t, storage, "ns/b", func(p *corev1.Pod) { p.Spec.NodeName = "n2" })
	a3 := change(t, storage, "ns/a", func(p *corev1.Pod) { p.Labels = map[string]string{"k": "v"} })
	a4 := change(t, storage, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n2" })
	gone := remove(t, storage, "ns/a")
	end := create(t, storage, Pod("other/x"))
	end2 := change(t, storage, "other/x", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	expect(t, one, shown("ADDED", entry), shown("MODIFIED", a2), shown("MODIFIED", a3), shown("MODIFIED", a4),
		shown("DELETED", gone))
	expect(t, node, shown("ADDED", a2), shown("MODIFIED", a3), shown("DELETED", a4), shown("ADDED", end2))
	expect(t, unbound, shown("ADDED", entry), shown("ADDED", b), shown("DELETED", a2), shown("DELETED", b2),
		shown("ADDED", end))
	expect(t, other, shown("ADDED", end2))
}

func testWatchInitialEvents(t *testing.T, storage objects.Storage, _ store.Store) {
	create(t, storage, Pod("ns/a", "app=x"))
	entry := change(t, storage, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	b := create(t, storage, Pod("ns/b", "app=y"))
	end := fmt.Sprintf("BOOKMARK@%s%v", rv(b), map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	for _, version := range []string{"", "0", rv(entry)} {
		q := where(t, "", "app=x", "")
		q.SendInitialEvents = new(true)
		q.Match = "NotOlderThan"
		q.Bookmarks = true
		q.ResourceVersion = version
		w := start(t, storage, q)
		expect(t, w, shown("ADDED", entry), end)
	}
	q := Everything()
	q.SendInitialEvents = new(false)
	q.Match = "NotOlderThan"
	w := start(t, storage, q)
	q.SendInitialEvents = new(true) // without bookmarks
	noMarks := start(t, storage, q)
	expect(t, noMarks, shown("ADDED", entry), shown("ADDED", b))
	c := create(t, storage, Pod("ns/c"))
	expect(t, w, shown("ADDED", c))
	expect(t, noMarks, shown("ADDED", c))
}

func testWatchExpired(t *testing.T, storage objects.Storage, st store.Store) {
	entry := create(t, storage, Pod("ns/a"))
	for range 3 {
		change(t, storage, "ns/a", func(p *corev1.Pod) { p.Generation++ })
	}
	last := change(t, storage, "ns/a", func(p *corev1.Pod) { p.Generation++ })
	if err := st.Compact(bounded(t), last.Revision); err != nil {
		t.Fatal(err)
	}
	q := Everything()
	q.ResourceVersion = objects.FormatRevision(1)
	w := start(t, storage, q)
	// A server with the history in memory may still serve it; one without must return an error.
	if ev, ok := <-w.Events(); ok {
		want(t, "first event", show(ev), shown("ADDED", entry))
		return
	}
	if err := w.Err(); !apierrors.IsResourceExpired(err) ||
		!strings.HasPrefix(err.Error(), "too old resource version: 1 (") {
		t.Errorf("watch before the compacted revision: got %v, want Expired", err)
	}
}

func testWatchRefused(t *testing.T, storage objects.Storage, _ store.Store) {
	for what, edit := range map[string]func(*objects.ListQuery){
		"match without initial events": func(q *objects.ListQuery) {
			q.ResourceVersion = "1"
			q.Match = "NotOlderThan"
		},
		"initial events without a match": func(q *objects.ListQuery) { q.SendInitialEvents = new(true) },
		"initial events, exact": func(q *objects.ListQuery) {
			q.SendInitialEvents = new(true)
			q.Match = "Exact"
		},
	} {
		q := Everything()
		edit(&q)
		_, err := storage.Watch(bounded(t), q)
		want := metav1.StatusReasonInvalid
		if what == "bad version" {
			want = metav1.StatusReasonBadRequest
		}
		reason(t, what, err, want)
	}
	q := Everything()
	q.ResourceVersion = "x"
	_, err := storage.Watch(bounded(t), q)
	reason(t, "bad version", err, metav1.StatusReasonUnknown) // a 500, as in Kubernetes
}

// testListThenWatch lists during writes and continues with a watch: together they must show each state once.
func testListThenWatch(t *testing.T, storage objects.Storage, _ store.Store) {
	const n = 200
	done := make(chan struct{})
	go func() { // ends after n writes
		defer close(done)
		for i := range n {
			if _, _, err := storage.Create(t.Context(), Pod(numbered("ns/p", i))); err != nil {
				t.Errorf("create: %v", err)
				return
			}
		}
	}()
	for seen := 0; seen < n; {
		l := list(t, storage, Everything())
		q := Everything()
		q.ResourceVersion = objects.FormatRevision(l.Revision)
		w := start(t, storage, q)
		seen = len(l.Items)
		for range min(10, n-seen) {
			ev := <-w.Events()
			want(t, "next event", ev.Entry.Object.GetName(), numbered("p", seen))
			seen++
		}
		if t.Failed() {
			break
		}
	}
	<-done
}

// testWatchShared checks that all watchers and readers get the same object.
func testWatchShared(t *testing.T, s objects.Storage, _ store.Store) {
	one := start(t, s, Everything())
	two := start(t, s, where(t, "ns", "", ""))
	a := create(t, s, Pod("ns/a"))
	first := expect(t, one, shown("ADDED", a))
	second := expect(t, two, shown("ADDED", a))
	got, err := s.Get(bounded(t), "ns", "a", "")
	if err != nil {
		t.Fatal(err)
	}
	if first[0].Entry != second[0].Entry || first[0].Entry != got {
		t.Error("watchers and readers hold different entries of one state")
	}
}

// testWalk walks the objects of a namespace or all, until the caller stops.
func testWalk(t *testing.T, storage objects.Storage, _ store.Store) {
	for _, key := range []string{"a/1", "a/2", "b/1"} {
		create(t, storage, Pod(key))
	}
	list(t, storage, Everything()) // so that the cache has them
	for _, tc := range []struct {
		ns   string
		most int
		want string
	}{{"", 9, "a/1 a/2 b/1"}, {"a", 9, "a/1 a/2"}, {"none", 9, ""}, {"", 2, "a/1 a/2"}} {
		var seen objects.List
		err := storage.Walk(bounded(t), tc.ns, func(e *objects.Entry) bool {
			seen.Items = append(seen.Items, e)
			return len(seen.Items) < tc.most
		})
		if err != nil {
			t.Fatal(err)
		}
		want(t, fmt.Sprintf("walk of %q, at most %d", tc.ns, tc.most), names(&seen), tc.want)
	}
}

// testSize checks the number and the bytes of the objects.
func testSize(t *testing.T, storage objects.Storage, _ store.Store) {
	size := func() (int, int) {
		list(t, storage, Everything())
		return storage.Size()
	}
	if n, bytes := size(); n != 0 || bytes != 0 {
		t.Errorf("empty: %d objects of %d bytes", n, bytes)
	}
	const each = 10_000
	for i := range 3 {
		p := Pod(numbered("ns/p", i))
		p.Annotations = map[string]string{"a": strings.Repeat("x", each)}
		create(t, storage, p)
	}
	if n, bytes := size(); n != 3 || bytes < 3*each || bytes > 4*each {
		t.Errorf("three objects of a little more than %d bytes: %d objects of %d bytes", each, n, bytes)
	}
	remove(t, storage, "ns/p001")
	if n, bytes := size(); n != 2 || bytes > 3*each {
		t.Errorf("after a deletion: %d objects of %d bytes", n, bytes)
	}
}
