// SPDX-License-Identifier: Apache-2.0

// Package objects keeps typed API objects in the byte-level store: encoding to
// the protobuf storage envelope, keys, resourceVersion, guarded updates, and
// reads from the watch cache. handlers calls it, one Storage per resource.
// It knows nothing of HTTP, users or admission.
//
// Invariants:
//  1. Objects handed out are shared and never modified (P4).
//  2. resourceVersion of an object is the store revision that wrote it; of a list, the revision it was read at.
//  3. Errors are *apierrors.StatusError where a client caused them (404, 409, 410, 429...). A write that is refused for the object's size is
//     store.ErrTooLarge too.
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

// Receipt tells what a write cost, for the timeline.
type Receipt struct {
	Key      string
	Revision int64
	Took     time.Duration
	Sync     time.Duration
}

// ListQuery is a LIST or WATCH as asked for. Selectors are never nil.
type ListQuery struct {
	Namespace string // "": all
	Labels    labels.Selector
	Fields    fields.Selector
	// ResourceVersion and Match as in metav1.ListOptions: "" is a consistent read, "0" any, N not older than (or exactly) N.
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

// Event is one change as one watcher sees it (selectors may have turned it into ADDED or DELETED).
type Event struct {
	Type watch.EventType
	// Entry holds the object. For Bookmark it carries only resourceVersion (and the initial-events-end annotation).
	Entry *Entry
	// Prev is the object before, of a Modified event; for storages that select by themselves.
	Prev *Entry
	// At is when the server learned of the change.
	At time.Time
	// Marked counts the watchers whose event has left a mark; nil: this is no change, but the state that a watch begins with.
	Marked *atomic.Int32
}

// Watch is a running watch. Events is closed at its end; Err then tells why as a *apierrors.StatusError (410 Expired when history is gone),
// or nil when ctx ended it, the server shut down or the reader was too slow: the client then resumes where it was.
type Watch interface {
	Events() <-chan Event
	Err() error
}

// UpdateFunc returns the object to store given the current one (nil when it does not exist and the caller allows creation).
// It is called again after a conflict, with the newer object. It must not modify current.
type UpdateFunc func(ctx context.Context, current kind.Object) (kind.Object, error)

// Storage is one resource's objects.
type Storage interface {
	// Get answers 404 when absent. rv is "", "0" or a revision the answer may not be older than.
	Get(ctx context.Context, namespace, name, rv string) (*Entry, error)
	List(ctx context.Context, q ListQuery) (*List, error)
	// Watch starts after q.ResourceVersion ("" or "0": current state first, as synthetic ADDED events). It ends with ctx.
	Watch(ctx context.Context, q ListQuery) (Watch, error)
	// Create stores obj, setting its resourceVersion; 409 AlreadyExists when the name is taken. obj becomes shared.
	Create(ctx context.Context, obj kind.Object) (*Entry, Receipt, error)
	// Update applies f until it sticks. Where f returns an object with a resourceVersion other than current's the answer is
	// 409 Conflict. An unchanged object is not written: Receipt.Revision is then 0. With createMissing, f may be called with nil.
	Update(ctx context.Context, namespace, name string, createMissing bool, f UpdateFunc) (e *Entry, created bool, r Receipt, err error)
	// Delete removes the object if check accepts the current one (preconditions); returns its last state with the deletion's revision.
	Delete(ctx context.Context, namespace, name string, check func(kind.Object) error) (*Entry, Receipt, error)
	// DeleteUnread removes an object that is stored and cannot be read: nobody is asked, and nobody is told what it was. One that can be
	// read is 409 Conflict. With dry it is looked at only.
	DeleteUnread(ctx context.Context, namespace, name string, dry bool) (Receipt, error)
	// Walk hands f the objects of a namespace ("": all) as a list of resourceVersion "0" has them, until f returns false.
	Walk(ctx context.Context, namespace string, f func(*Entry) bool) error
	// Size is how many objects there are and how many bytes they take in the store, for estimates. It waits for nothing; storage that keeps
	// no objects answers 0, 0.
	Size() (count, bytes int)
}

// Encoder turns an object into wire bytes; Key names the encoding for memoization ("application/json;v1").
type Encoder interface {
	Key() string
	Encode(obj runtime.Object) ([]byte, error)
}
