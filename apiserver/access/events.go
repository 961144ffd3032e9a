// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
)

// EventHandler receives every object of a resource: Set for existing and changed ones, Remove for deleted ones.
type EventHandler struct {
	Resource schema.GroupVersionResource
	Set      func(runtime.Object)
	Remove   func(runtime.Object)
	// Keep returns what is kept of an object for a later Remove; nil: the object.
	Keep func(kind.Object) kind.Object
	// Storage has the objects, for stored objects that are no resource of the API; nil: the resource's storage.
	Storage objects.Storage
	// Namespace limits the objects; empty: all.
	Namespace string
}

// EventHandlers are the running event handlers of a server.
type EventHandlers struct {
	served *resources.Served
	all    []*follower
}

// NewEventHandlers returns no event handlers of served resources. Start adds them.
func NewEventHandlers(served *resources.Served) *EventHandlers { return &EventHandlers{served: served} }

// Start passes handler all objects, then in group every change until ctx ends.
func (h *EventHandlers) Start(ctx context.Context, group *errgroup.Group, handler EventHandler) error {
	follower := &follower{EventHandler: handler, known: map[string]kind.Object{}}
	if follower.Storage == nil {
		var err error
		if follower.Storage, err = h.served.Storage(handler.Resource); err != nil {
			return err
		}
	}
	if err := follower.relist(ctx); err != nil {
		return err
	}
	h.all = append(h.all, follower)
	group.Go(func() error {
		for ctx.Err() == nil {
			lost, err := follower.watch(ctx)
			if lost && ctx.Err() == nil {
				err = follower.relist(ctx)
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// Wait waits until all event handlers have received the objects that exist now, or until ctx or stop is done.
func (h *EventHandlers) Wait(ctx, stop context.Context) error {
	for _, f := range h.all {
		page, err := f.Storage.List(ctx, f.query(""))
		if err != nil {
			return fmt.Errorf("wait for event handlers: %w", err)
		}
		last := int64(0)
		for _, e := range page.Items {
			last = max(last, revisionOf(e.Object.GetResourceVersion()))
		}
		for f.seen.Load() < last && ctx.Err() == nil && stop.Err() == nil {
			time.Sleep(100 * time.Microsecond) // the write is between the cache and its watcher
		}
	}
	return nil
}

// follower is a running event handler.
type follower struct {
	EventHandler
	known    map[string]kind.Object // what the handler has, by key
	revision string
	seen     atomic.Int64 // the revision of the last object, or list, that the handler received
}

// query selects the handler's objects.
func (f *follower) query(resourceVersion string) objects.ListQuery {
	return objects.ListQuery{
		Namespace:       f.Namespace,
		Labels:          labels.Everything(),
		Fields:          fields.Everything(),
		ResourceVersion: resourceVersion,
	}
}

// at notes the revision that the handler has received.
func (f *follower) at(revision string) {
	f.revision = revision
	f.seen.Store(revisionOf(revision))
}

// relist updates the event handler to the current state.
func (f *follower) relist(ctx context.Context) error {
	page, err := f.Storage.List(ctx, f.query("0")) // from the cache, without unreadable objects
	if err != nil {
		return fmt.Errorf("list %s: %w", f.Resource.Resource, err)
	}
	gone := maps.Clone(f.known)
	for _, e := range page.Items {
		delete(gone, e.Key)
		f.set(e)
	}
	for key, obj := range gone {
		delete(f.known, key)
		f.Remove(obj)
	}
	f.at(objects.FormatRevision(page.Revision))
	return nil
}

func (f *follower) set(e *objects.Entry) {
	kept := e.Object
	if f.Keep != nil {
		kept = f.Keep(kept)
	}
	f.known[e.Key] = kept
	f.Set(e.Object)
}

// watch passes on changes; lost means that the history is gone.
func (f *follower) watch(ctx context.Context) (lost bool, err error) {
	watcher, err := f.Storage.Watch(ctx, f.query(f.revision))
	if err != nil {
		return apierrors.IsResourceExpired(err) || apierrors.IsGone(err),
			fmt.Errorf("watch %s: %w", f.Resource.Resource, err)
	}
	for ev := range watcher.Events() {
		switch ev.Type {
		case watch.Added, watch.Modified:
			f.set(ev.Entry)
		case watch.Deleted:
			delete(f.known, ev.Entry.Key)
			f.Remove(ev.Entry.Object)
		case watch.Bookmark, watch.Error:
		}
		f.at(ev.Entry.Object.GetResourceVersion())
	}
	return watcher.Err() != nil, nil
}

// revisionOf parses a resourceVersion; 0: invalid.
func revisionOf(rv string) int64 {
	n, err := strconv.ParseInt(rv, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
