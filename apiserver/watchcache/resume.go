// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keelson/apiserver/objects"
	"keelson/store"
)

// Limits of a replay from the store's history; beyond them a new list is cheaper.
const (
	replayMax  = 100_000 // revisions
	replayTime = 10 * time.Second
	replayRuns = 5 // how often the window may be trimmed during a replay before it is given up
)

// resume starts w after w.start or, with now, at the current revision.
func (r *Resource) resume(ctx context.Context, w *watcher, now bool) error {
	for range replayRuns {
		r.mu.Lock()
		if now {
			w.start = r.revisionLocked()
		}
		since := r.window.since
		if w.start >= since {
			w.backlog = r.window.after(w.start)
			r.watches.add(w)
			r.mu.Unlock()
			return nil
		}
		r.mu.Unlock()
		if err := r.extendWindow(ctx, w.start); err != nil {
			return err
		}
	}
	return objects.TooOld(w.start, r.since())
}

func (r *Resource) since() int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.window.since
}

// extendWindow extends the window to every change after rev from the store's history, so that clients need not list
// again after a restart of the server or a burst of writes. Later watches use the extension too.
func (r *Resource) extendWindow(ctx context.Context, rev int64) error {
	r.replayMu.Lock()
	defer r.replayMu.Unlock()
	since := r.since()
	if rev >= since {
		return nil
	}
	if since-rev > replayMax {
		return objects.TooOld(rev, since)
	}
	missed, err := r.replay(ctx, rev, since)
	switch {
	case errors.Is(err, store.ErrCompacted), errors.Is(err, store.ErrSlow), len(missed) > queueMax:
		return objects.TooOld(rev, since)
	case err != nil:
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window.since == since {
		r.window = window{since: rev, changes: append(missed, r.window.changes...)}
	}
	return nil
}

// replay reads this resource's changes in (from, to] from the store.
func (r *Resource) replay(ctx context.Context, from, to int64) ([]*change, error) {
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	// all keys, so that the end is seen whatever resource was written
	watcher, err := r.cache.store.Watch(ctx, "", from)
	if err != nil {
		return nil, err
	}
	defer watcher.Stop()
	var changes []*change
	for batch := range watcher.Events() {
		for i := range batch {
			ev := &batch[i]
			if ev.KV.Revision > to {
				return changes, nil
			}
			if r.cache.route(ev.KV.Key) == r {
				ch, err := r.replayed(ev)
				if err != nil {
					return nil, err
				}
				changes = append(changes, ch)
			}
			if ev.KV.Revision == to {
				return changes, nil
			}
		}
	}
	if err := watcher.Err(); err != nil {
		return nil, err
	}
	return nil, ctx.Err()
}

func (r *Resource) replayed(ev *store.Event) (*change, error) {
	ch := &change{
		resource: r,
		rev:      ev.KV.Revision,
		key:      ev.KV.Key,
		at:       time.Now(),
	}
	if ev.Type != store.Deleted {
		e, err := r.records.Decoded(ev.KV, r.cache.memo)
		if err != nil {
			return nil, fmt.Errorf("replay %s at %d: %w", ch.key, ch.rev, err)
		}
		ch.cur = r.records.Keep(e, ev.KV.Value)
	}
	if ev.Type != store.Created {
		// Its own revision is unknown here but also never visible: watchers see prev only in a deletion, at ch.rev.
		before := store.KV{Key: ch.key, Value: ev.Prev, Revision: ch.rev}
		e, err := r.records.Decoded(before, r.cache.memo)
		if err != nil {
			return nil, fmt.Errorf("replay %s at %d: %w", ch.key, ch.rev, err)
		}
		ch.prev = r.records.Keep(e, ev.Prev)
	}
	return ch, nil
}
