// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/apiserver/objects"
	"keelson/lib/cpusem"
	"keelson/lib/signal"
)

// watcher is one running watch. The feed pushes shared changes to its queue; its own goroutine selects and delivers.
type watcher struct {
	resource  *Resource
	selection selection
	route     routeKey
	namespace string // "": all
	bookmarks bool
	start     int64     // changes up to this revision are not delivered
	backlog   []*change // changes between start and the registration; a shared part of the window
	events    chan objects.Event
	wake      signal.Signal

	mu    sync.Mutex
	queue []*change
	ended bool
	err   error
}

const (
	queueMax = windowMax // how many changes a reader may be behind
	buffered = 32
)

// Events is closed when the watch ends.
func (w *watcher) Events() <-chan objects.Event { return w.events }

// Err returns why the watch ended.
func (w *watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// push is called by the feed with the resource locked; it never blocks (invariant 3).
func (w *watcher) push(c *change) {
	w.mu.Lock()
	if len(w.queue) >= queueMax {
		w.ended = true
		w.queue = nil
	}
	if !w.ended {
		w.queue = append(w.queue, c)
	}
	first := len(w.queue) <= 1
	w.mu.Unlock()
	if first {
		w.wake.Notify()
	}
}

// terminate ends the watch on the server's side; the client resumes or lists again.
func (w *watcher) terminate() {
	w.mu.Lock()
	w.ended = true
	w.queue = nil
	w.mu.Unlock()
	w.wake.Notify()
}

func (w *watcher) drain() (batch []*change, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch = w.queue
	w.queue = nil
	return batch, w.ended
}

// Watch starts a watch. An error at the start (the history is gone) is delivered by the watch itself, as in Kubernetes.
func (r *Resource) Watch(ctx context.Context, query objects.ListQuery) (objects.Watch, error) {
	if err := objects.CheckQuery(&query, true); err != nil {
		return nil, err
	}
	if err := r.cache.refuse(); err != nil {
		return nil, err
	}
	rev, err := objects.ParseRevision(query.ResourceVersion)
	if err != nil {
		return nil, err
	}
	initial := rev == 0
	if query.SendInitialEvents != nil {
		initial = *query.SendInitialEvents
	}
	switch {
	case initial || rev == 0:
		err = r.await(ctx, query.ResourceVersion == "", rev)
	default:
		err = r.cache.wait(ctx, 1) // wait until it is loaded; a watch may start in the future
	}
	if err != nil {
		return failedWatch(err), ctx.Err()
	}
	w := &watcher{
		resource:  r,
		selection: newSelection(&query),
		bookmarks: query.Bookmarks,
		start:     rev,
		namespace: r.records.ScopeOf(query.Namespace),
		events:    make(chan objects.Event, buffered),
		wake:      signal.New(),
	}
	w.route.key, w.route.index, w.route.value = r.indexLookup(&query)
	switch {
	case w.route.index != "":
		w.selection.useIndex(r.records.Index[w.route.index], w.route.value)
	case w.route.key == "":
		w.route.namespace = w.namespace
	}
	if err := r.cache.addWatch(); err != nil {
		return nil, err
	}
	var state *snapshot
	if initial {
		state = r.register(w)
	} else if err := r.resume(ctx, w, rev == 0); err != nil {
		r.cache.watchers.Done()
		return failedWatch(err), ctx.Err()
	}
	if r.next.Load() != nil {
		w.terminate() // the resource is replaced: the client resumes with the new one
	}
	go func() { // ends with ctx, the cache, or a full queue; Cache.end waits for it
		defer r.cache.watchers.Done()
		w.run(ctx, &query, state)
	}()
	return w, nil
}

// failedWatch is a watch that has ended with err.
func failedWatch(err error) objects.Watch {
	w := &watcher{events: make(chan objects.Event), err: err}
	close(w.events)
	return w
}

// register adds w to the routes and returns the current state.
func (r *Resource) register(w *watcher) *snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.snapshotLocked()
	w.start = state.rev
	r.watches.add(w)
	return state
}

// run delivers events until ctx or the cache ends, or w is terminated.
func (w *watcher) run(ctx context.Context, q *objects.ListQuery, state *snapshot) {
	defer close(w.events)
	defer func() {
		w.resource.mu.Lock()
		defer w.resource.mu.Unlock()
		w.resource.watches.remove(w)
	}()
	if state != nil && !w.deliverState(ctx, q, state) {
		return
	}
	if !w.deliverBacklog(ctx) {
		return
	}
	last, stop := w.beforeDeadline(ctx)
	defer stop()
	for {
		batch, ended := w.drain()
		for _, c := range batch {
			if !w.deliver(ctx, c) {
				return
			}
		}
		if ended {
			return
		}
		select {
		case <-w.wake.C():
		case <-last:
			last = nil
			w.resource.bookmarkOne(w)
		case <-ctx.Done():
			return
		case <-w.resource.cache.stop:
			return
		}
	}
}

// beforeDeadline fires shortly before ctx's deadline, for a bookmark from which the client resumes.
func (w *watcher) beforeDeadline(ctx context.Context) (<-chan time.Time, func()) {
	deadline, ok := ctx.Deadline()
	if !ok || !w.bookmarks {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(deadline) - 2*time.Second)
	return t.C, func() { t.Stop() }
}

// deliverBacklog delivers the changes of the backlog that concern w.
func (w *watcher) deliverBacklog(ctx context.Context) bool {
	for _, c := range w.backlog {
		if w.concerns(c) && !w.deliver(ctx, c) {
			return false
		}
	}
	w.backlog = nil
	return true
}

func (w *watcher) deliver(ctx context.Context, c *change) bool {
	if c.rev <= w.start {
		return true
	}
	if c.bookmarkEntry != nil {
		return w.send(ctx, objects.Event{Type: watch.Bookmark, Entry: c.bookmarkEntry, At: c.at})
	}
	if w.namespace != "" && w.namespace != w.resource.namespaceOf(c.key) {
		return true // from an index over all namespaces
	}
	ev, ok := w.selection.eventFor(c)
	return !ok || w.send(ctx, ev)
}

func (w *watcher) send(ctx context.Context, ev objects.Event) bool {
	select {
	case w.events <- ev:
		return true
	case <-ctx.Done():
	case <-w.resource.cache.stop:
	}
	return false
}

// offer is send for a goroutine that holds a processor turn; it holds it again on return.
func (w *watcher) offer(ctx context.Context, ev objects.Event) bool {
	select {
	case w.events <- ev:
		return true
	default:
	}
	var sent bool
	cpusem.Processors.Away(func() { sent = w.send(ctx, ev) })
	return sent
}

// deliverState sends the initial state as ADDED events, and the bookmark at its end if requested.
func (w *watcher) deliverState(ctx context.Context, query *objects.ListQuery, state *snapshot) bool {
	resource := w.resource
	now := time.Now()
	ok := true
	seen := 0
	labels := newLabelMatcher(query.Labels)
	visit := func(it item) bool {
		if seen++; seen%objectsPerCheck == 0 {
			cpusem.Processors.Yield()
			ok = ctx.Err() == nil
		}
		if !ok || !labels.matches(it.labels) {
			return ok
		}
		if e := it.kept.Entry(); w.selection.all || resource.records.Selects(query, e.Object) {
			ok = w.offer(ctx, objects.Event{Type: watch.Added, Entry: e, At: now})
		}
		return ok
	}
	cpusem.Processors.Do(func() { state.each(resource.spanOf(query), visit) })
	if ok && query.SendInitialEvents != nil && query.Bookmarks {
		ok = w.send(ctx, objects.Event{Type: watch.Bookmark, Entry: resource.bookmark(state.rev, true), At: now})
	}
	return ok
}

func (r *Resource) bookmark(rev int64, initialEnd bool) *objects.Entry {
	obj := r.records.New()
	obj.SetResourceVersion(objects.FormatRevision(rev))
	if initialEnd {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return objects.NewEntry("", obj, rev, nil)
}

// bookmarkAll sends one shared bookmark to all watchers that want it. It goes through their queues, after all changes
// of this resource up to it.
func (r *Resource) bookmarkAll() {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.watches.bookmarks) > 0 {
		push(r.watches.bookmarks, r.bookmarkLocked())
	}
}

func (r *Resource) bookmarkOne(w *watcher) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	w.push(r.bookmarkLocked())
}

func (r *Resource) bookmarkLocked() *change {
	rev := r.revisionLocked()
	return &change{
		resource:      r,
		rev:           rev,
		at:            time.Now(),
		bookmarkEntry: r.bookmark(rev, false),
	}
}
