// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/lib/cpusem"
	"keelson/lib/memory"
	"keelson/store"
)

// Resource holds one resource's objects; it implements objects.Storage.
type Resource struct {
	cache   *Cache
	records *objects.Records
	next    atomic.Pointer[Resource] // the replacement of this resource, if any

	replayMu sync.Mutex // held while the window is extended from the store; locked before mu

	// mu guards the following fields; readers of single entries share it.
	mu              sync.RWMutex
	trees           *trees
	last            int64   // revision of this resource's last change, or of the load
	latest          *forest // a clone of the trees, nil after a change
	snapshots       []*snapshot
	window          window
	expireScheduled bool // a timer for the window is set
	watches         routes
}

var _ objects.Storage = (*Resource)(nil)

func errStopped() error { return apierrors.NewServiceUnavailable("the server is shutting down") }

func newResource(c *Cache, cfg objects.Config) *Resource {
	r := &Resource{cache: c}
	r.records = objects.Cached(cfg, c.store, c.memo, c.handoff, r.current)
	r.trees = newTrees(r.records.Index)
	r.watches = newRoutes()
	return r
}

// reset replaces the trees by t (nil: empty) and ends the running watches, which have no events for the difference.
func (r *Resource) reset(t *trees, rev int64) {
	if t == nil {
		t = newTrees(r.records.Index)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trees = t
	r.last = rev
	r.latest = nil
	r.snapshots = nil
	r.window = window{since: rev}
	r.watches.each(func(w *watcher) { w.terminate() })
}

// apply applies a change, adds it to the window and dispatches it (invariant 2).
func (r *Resource) apply(ch *change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.trees.get(ch.key)
	ch.prev = before.kept
	r.trees.setDecodeError(ch.key, ch.rev, ch.err)
	if ch.prev.None() && ch.cur.None() {
		return
	}
	ch.resource = r
	r.trees.replace(before, ch.cur)
	r.last = ch.rev
	r.latest = nil
	r.addToWindowLocked(ch)
	r.watches.dispatch(ch)
}

// addToWindowLocked adds a change to the window. After a burst, when no more changes come, a timer shrinks the window;
// there is none while the window is small.
func (r *Resource) addToWindowLocked(ch *change) {
	r.window.add(ch)
	r.expireLaterLocked()
}

func (r *Resource) expireLaterLocked() {
	if over := len(r.window.changes) - windowMin; !r.expireScheduled && over > 0 {
		r.expireScheduled = true
		time.AfterFunc(time.Until(r.window.changes[over-1].at.Add(windowAge)), r.expire)
	}
}

func (r *Resource) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	memory.Dropped(r.window.expire(time.Now()))
	r.expireScheduled = false
	r.expireLaterLocked()
}

// revisionLocked is the revision of the trees: this resource has no change between its last one and the cache's
// revision.
func (r *Resource) revisionLocked() int64 { return max(r.last, r.cache.Revision()) }

// current is the entry on which a write is based.
func (r *Resource) current(ctx context.Context, key string) (*objects.Entry, error) {
	if err := r.cache.waitLatest(ctx); err != nil {
		return nil, err
	}
	e, err := r.newest().find(key)
	if e == nil && err == nil {
		err = store.ErrNotFound
	}
	return e, err
}

// find returns the key's entry, nil if there is none. A packed one is decoded after the lock is released.
func (r *Resource) find(key string) (*objects.Entry, error) {
	r.mu.RLock()
	kept, err := r.trees.find(key)
	r.mu.RUnlock()
	return kept.Entry(), err
}

// Get returns one object.
func (r *Resource) Get(ctx context.Context, namespace, name, rv string) (*objects.Entry, error) {
	key, err := r.records.Key(namespace, name)
	if err != nil {
		return nil, err
	}
	rev, err := objects.ParseRevision(rv)
	if err != nil {
		return nil, err
	}
	if err := r.await(ctx, rv == "", rev); err != nil {
		return nil, err
	}
	e, err := r.newest().find(key)
	if e == nil && err == nil {
		err = apierrors.NewNotFound(r.records.Resource, name)
	}
	return e, err
}

// await waits for the state that a read requires.
func (r *Resource) await(ctx context.Context, latest bool, rev int64) error {
	if latest {
		return r.cache.waitLatest(ctx)
	}
	return r.cache.waitRevision(ctx, rev)
}

// All iterates over the objects of a namespace ("": all) without waiting; for in-process readers.
func (r *Resource) All(namespace string) iter.Seq[*objects.Entry] {
	return func(yield func(*objects.Entry) bool) {
		whole := span{prefix: r.records.KeyPrefix(namespace)}
		r.snapshot().each(whole, func(it item) bool { return yield(it.kept.Entry()) })
	}
}

// Walk calls f with the objects of a namespace ("": all) once the cache is filled, until f returns false; like a list
// with resourceVersion=0 without pages.
func (r *Resource) Walk(ctx context.Context, namespace string, f func(*objects.Entry) bool) error {
	if err := r.await(ctx, false, 0); err != nil {
		return err
	}
	r.newest().All(namespace)(f)
	return nil
}

// Size is the number of objects and their stored bytes.
func (r *Resource) Size() (count, bytes int) {
	r = r.newest()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.trees.main.Len(), r.trees.bytes
}

// Create stores a new object.
func (r *Resource) Create(ctx context.Context, obj kind.Object) (*objects.Entry, objects.Receipt, error) {
	return r.records.Create(ctx, obj)
}

// Update calls f, again after conflicts.
func (r *Resource) Update(
	ctx context.Context, namespace, name string, createMissing bool, f objects.UpdateFunc,
) (*objects.Entry, bool, objects.Receipt, error) {
	return r.records.Update(ctx, namespace, name, createMissing, f)
}

// Delete removes an object that check accepts.
func (r *Resource) Delete(
	ctx context.Context, namespace, name string, check func(kind.Object) error,
) (*objects.Entry, objects.Receipt, error) {
	return r.records.Delete(ctx, namespace, name, check)
}

// DeleteCorrupt removes an object that cannot be decoded.
func (r *Resource) DeleteCorrupt(ctx context.Context, namespace, name string, dry bool) (objects.Receipt, error) {
	return r.records.DeleteCorrupt(ctx, namespace, name, dry)
}

// List returns a page of objects.
func (r *Resource) List(ctx context.Context, query objects.ListQuery) (*objects.List, error) {
	plan, err := r.records.Plan(&query)
	if err != nil {
		return nil, err
	}
	if query.Limit == 0 { // a page costs little
		if err := r.cache.refuse(); err != nil {
			return nil, err
		}
	}
	if err := r.await(ctx, plan.Latest, plan.Revision); err != nil {
		return nil, err
	}
	r = r.newest()
	if plan.Latest { // resourceVersion=0 skips unreadable objects
		r.mu.RLock()
		err := r.trees.checkComplete(plan.Prefix, r.records.Resource)
		r.mu.RUnlock()
		if err != nil {
			return nil, err
		}
	}
	if plan.Exact {
		s := r.snapshotAt(plan.Revision)
		if s == nil {
			return r.records.ListPlanned(ctx, &query, plan)
		}
		return r.listSnapshot(ctx, s, plan.Revision, &query, plan)
	}
	if list := r.listIndexed(&query, plan); list != nil {
		return list, nil
	}
	s := r.snapshot()
	return r.listSnapshot(ctx, s, s.rev, &query, plan)
}

// objectsPerCheck is the number of objects between two checks of a list's context.
const objectsPerCheck = 1000

func (r *Resource) listSnapshot(
	ctx context.Context, snap *snapshot, rev int64, q *objects.ListQuery, p objects.Plan,
) (*objects.List, error) {
	page := r.records.NewPage(q, p, rev)
	labels := newLabelMatcher(q.Labels)
	part := r.spanOf(q)
	part.from = p.From
	seen := 0
	cpusem.Processors.Do(func() {
		snap.each(part, func(it item) bool {
			if seen++; seen%objectsPerCheck == 0 {
				cpusem.Processors.Yield()
				if ctx.Err() != nil {
					return false
				}
			}
			return !labels.matches(it.labels) || page.Add(it.kept.Entry())
		})
	})
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	list := page.List()
	if list.Continue != "" {
		r.addSnapshot(&snapshot{rev, snap.forest})
	}
	return list, nil
}

// listIndexed answers a list of one object or by an indexed field from the trees themselves, because a snapshot would
// make the next writes more expensive; nil: not such a list.
func (r *Resource) listIndexed(q *objects.ListQuery, plan objects.Plan) *objects.List {
	part := r.spanOf(q)
	if q.Limit > 0 || part.key == "" && part.index == "" {
		return nil
	}
	part.from = plan.From
	labels := newLabelMatcher(q.Labels)
	r.mu.RLock()
	defer r.mu.RUnlock()
	page := r.records.NewPage(q, plan, r.revisionLocked())
	r.trees.each(part, func(it item) bool { return !labels.matches(it.labels) || page.Add(it.kept.Entry()) })
	return page.List()
}

// spanOf returns the part of the trees with all objects that a query selects.
func (r *Resource) spanOf(q *objects.ListQuery) span {
	part := span{prefix: r.records.KeyPrefix(q.Namespace)}
	part.key, part.index, part.value = r.indexLookup(q)
	return part
}

// indexLookup returns the one key, or the one value of an indexed field, to which a query is restricted.
func (r *Resource) indexLookup(query *objects.ListQuery) (key, name, value string) {
	if query.Fields.Empty() {
		return "", "", ""
	}
	if n, ok := query.Fields.RequiresExactMatch("metadata.name"); ok {
		ns := query.Namespace
		if exact, ok := query.Fields.RequiresExactMatch("metadata.namespace"); ok && ns == "" {
			ns = exact
		}
		if k, err := r.records.Key(ns, n); err == nil {
			return k, "", ""
		}
	}
	for field := range r.records.Index {
		if v, ok := query.Fields.RequiresExactMatch(field); ok {
			return "", field, v
		}
	}
	return "", "", ""
}

// namespaceOf is the namespace in a key of this resource.
func (r *Resource) namespaceOf(key string) string {
	if !r.records.Namespaced {
		return ""
	}
	ns, _, _ := strings.Cut(key[len(r.records.KeyPrefix("")):], "/")
	return ns
}

// snapshot is the state of the resource at a revision; it is never modified.
type snapshot struct {
	rev int64
	*forest
}

// snapshot returns the current state. It blocks writers only while it marks the trees as shared (copy-on-write).
func (r *Resource) snapshot() *snapshot {
	r.mu.RLock()
	s := r.latest
	at := r.revisionLocked()
	r.mu.RUnlock()
	if s != nil {
		return &snapshot{at, s}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshotLocked()
}

func (r *Resource) snapshotLocked() *snapshot {
	if r.latest == nil {
		r.latest = r.trees.clone()
	}
	return &snapshot{r.revisionLocked(), r.latest}
}

// snapshotAt returns the state at exactly rev if it is the current one or kept for further pages.
func (r *Resource) snapshotAt(rev int64) *snapshot {
	r.mu.RLock()
	for _, s := range r.snapshots {
		if s.rev == rev {
			r.mu.RUnlock()
			return s
		}
	}
	current := r.last <= rev
	r.mu.RUnlock()
	if !current {
		return nil
	}
	s := r.snapshot()
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.last > rev { // changed meanwhile
		return nil
	}
	return s
}

// Snapshots for further pages are few and short-lived because they keep old objects in memory; older revisions are read
// from the store.
const (
	maxSnapshots = 4
	snapshotTTL  = time.Minute
)

func (r *Resource) addSnapshot(snap *snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, have := range r.snapshots {
		if have.rev == snap.rev {
			return
		}
	}
	if len(r.snapshots) >= maxSnapshots {
		r.snapshots = r.snapshots[1:]
	}
	r.snapshots = append(slices.Clip(r.snapshots), snap)
	time.AfterFunc(snapshotTTL, func() { r.removeSnapshot(snap) })
}

func (r *Resource) removeSnapshot(s *snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []*snapshot
	for _, have := range r.snapshots {
		if have != s {
			left = append(left, have)
		}
	}
	r.snapshots = left
}
