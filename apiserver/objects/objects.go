// SPDX-License-Identifier: Apache-2.0

// Package objects stores typed API objects in the byte-level store: encoding in the storage format, keys,
// resourceVersion, conditional updates, and reads from the watch cache. handlers calls it, one Storage per resource. It
// knows nothing of HTTP, users or admission.
//
// Invariants:
//  1. Returned objects are shared and never modified (P4).
//  2. resourceVersion of an object is the store revision that wrote it; of a list, the revision it was read at.
//  3. Errors are *apierrors.StatusError where a client caused them (404, 409, 410, 429...). A write rejected for the
//     object's size is also store.ErrTooLarge.
package objects

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/api/kind"
)

// Receipt holds the key, revision and duration of a write, for the timeline.
type Receipt struct {
	Key      string
	Revision int64
	Took     time.Duration
	Sync     time.Duration
}

// ListQuery is a LIST or WATCH. Selectors are never nil.
type ListQuery struct {
	Namespace string // "": all
	Labels    labels.Selector
	Fields    fields.Selector
	// ResourceVersion and Match as in metav1.ListOptions: "" is a consistent read, "0" any state, N not older than (or
	// exactly) N.
	ResourceVersion string
	Match           string // "", NotOlderThan, Exact
	Limit           int64
	Continue        string
	// SendInitialEvents (watch only): synthetic ADDED events, then a bookmark annotated k8s.io/initial-events-end.
	SendInitialEvents *bool
	Bookmarks         bool
}

// List is a page of objects.
type List struct {
	Items     []*Entry
	Revision  int64
	Continue  string
	Remaining *int64
}

// Event is a change as one watcher sees it: selectors may have turned it into ADDED or DELETED.
type Event struct {
	Type watch.EventType
	// Entry holds the object. For a bookmark it has only a resourceVersion (and the annotation initial-events-end).
	Entry *Entry
	// Prev is the previous object of a Modified event, for storages with selectors of their own.
	Prev *Entry
	// At is when the server received the change.
	At time.Time
	// Marked counts the watchers for which the event was recorded; nil: no change but part of the initial state.
	Marked *atomic.Int32
}

// Watch is a running watch. Events is closed at its end. Err then returns a *apierrors.StatusError (410 Expired when
// the history is gone), or nil when ctx ended it, the server shut down or the reader was too slow: the client then
// resumes.
type Watch interface {
	Events() <-chan Event
	Err() error
}

// UpdateFunc is one attempt of an update: it calls write with the object to store in place of the current one (nil when
// it does not exist and the caller allows creation), and returns its error. What it must undo after a failed write, it
// undoes itself. It may call write again after an error; if it calls it not at all, an existing object stays as it is.
// After a conflict there is another attempt, with the newer object. It must not modify current.
type UpdateFunc func(ctx context.Context, current kind.Object, write func(kind.Object) error) error

// Replace is the UpdateFunc that stores what next returns.
func Replace(next func(ctx context.Context, current kind.Object) (kind.Object, error)) UpdateFunc {
	return func(ctx context.Context, current kind.Object, write func(kind.Object) error) error {
		obj, err := next(ctx, current)
		if err != nil {
			return err
		}
		return write(obj)
	}
}

// Storage is one resource's objects.
type Storage interface {
	// Get returns 404 if the object does not exist. rv is "", "0" or the minimum revision of the result.
	Get(ctx context.Context, namespace, name, rv string) (*Entry, error)
	List(ctx context.Context, q ListQuery) (*List, error)
	// Watch starts after q.ResourceVersion ("" or "0": first the current state as synthetic ADDED events). It ends with
	// ctx.
	Watch(ctx context.Context, q ListQuery) (Watch, error)
	// Create stores obj and sets its resourceVersion; 409 AlreadyExists if the name exists. obj is shared afterwards.
	Create(ctx context.Context, obj kind.Object) (*Entry, Receipt, error)
	// Update calls f, again after conflicts. If f writes an object with another resourceVersion than current's, the
	// result is 409 Conflict. An unchanged object is not written: Receipt.Revision is then 0. With createMissing, f may
	// be called with nil.
	Update(
		ctx context.Context, namespace, name string, createMissing bool, f UpdateFunc,
	) (e *Entry, created bool, r Receipt, err error)
	// Delete removes the object if check accepts the current one (preconditions). It returns the last state with the
	// deletion's revision.
	Delete(ctx context.Context, namespace, name string, check func(kind.Object) error) (*Entry, Receipt, error)
	// DeleteCorrupt removes a stored object that cannot be decoded, without a check and without returning it. A
	// readable one is 409 Conflict. With dry nothing is written.
	DeleteCorrupt(ctx context.Context, namespace, name string, dry bool) (Receipt, error)
	// Walk calls f with the objects of a namespace ("": all) as in a list with resourceVersion "0", until f returns
	// false.
	Walk(ctx context.Context, namespace string, f func(*Entry) bool) error
	// Size is the number of objects and their stored bytes, for estimates. It does not block; storage without objects
	// returns 0, 0.
	Size() (count, bytes int)
}

// Encoder encodes an object; Key identifies the encoding in caches ("application/json;v1").
type Encoder interface {
	Key() string
	Encode(obj runtime.Object) ([]byte, error)
}
