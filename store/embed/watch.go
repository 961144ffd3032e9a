// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"keelson/store"
)

// ring holds the latest events, one per revision without gaps. It hands out sub-slices of itself: what is in the
// backing array is never overwritten, only left behind for a new array.
type ring struct {
	first  int64 // revision of events[0]
	bytes  int
	events []store.Event
}

const (
	ringEvents = 4096
	ringBytes  = 4 << 20
	batchSize  = 512
)

func (r *ring) reset(first int64) { *r = ring{first: first} }

func (r *ring) add(events []store.Event) {
	r.events = append(r.events, events...)
	for i := range events {
		r.bytes += len(events[i].KV.Value) + len(events[i].Prev)
	}
	if len(r.events) <= ringEvents && r.bytes <= ringBytes {
		return
	}
	drop := len(r.events) / 2
	for i := range r.events[:drop] {
		r.bytes -= len(r.events[i].KV.Value) + len(r.events[i].Prev)
	}
	r.first += int64(drop)
	r.events = append([]store.Event(nil), r.events[drop:]...)
}

// after returns up to a batch of events above rev; ok is false when the ring no longer reaches back that far.
func (r *ring) after(rev int64) (events []store.Event, ok bool) {
	if rev+1 < r.first {
		return nil, false
	}
	i := rev + 1 - r.first
	if i >= int64(len(r.events)) {
		return nil, true
	}
	j := min(i+batchSize, int64(len(r.events)))
	return r.events[i:j:j], true
}

// Watch delivers the writes under prefix after revision from.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	cursor := from
	if from == 0 {
		cursor = s.durable.Load()
	}
	if from != 0 && from < s.compacted.Load() {
		return nil, store.ErrCompacted
	}
	return store.Fed(ctx, s.background.Go, func(ctx context.Context, events chan<- []store.Event) error {
		return s.feed(ctx, events, prefix, cursor)
	}), nil
}

// feed delivers at its reader's pace until ctx ends, the store closes or history is gone: from the ring while the
// reader keeps up, from the log on disk when it does not.
func (s *Store) feed(ctx context.Context, out chan<- []store.Event, prefix string, cursor int64) error {
	for {
		events, tick, err := s.eventsAfter(cursor)
		if err != nil {
			return err
		}
		if len(events) > 0 {
			cursor = events[len(events)-1].KV.Revision
			if events = under(prefix, events); len(events) == 0 {
				continue
			}
			select {
			case out <- events:
				continue
			case <-ctx.Done():
			case <-s.done:
				return store.ErrClosed
			}
			return nil
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return nil
		case <-s.done:
			return store.ErrClosed
		}
	}
}

// under keeps the events below prefix, without copying when that is all of them.
func under(prefix string, events []store.Event) []store.Event {
	for i := range events {
		if strings.HasPrefix(events[i].KV.Key, prefix) {
			continue
		}
		kept := append([]store.Event(nil), events[:i]...)
		for _, e := range events[i+1:] {
			if strings.HasPrefix(e.KV.Key, prefix) {
				kept = append(kept, e)
			}
		}
		return kept
	}
	return events
}

// eventsAfter returns the next events above rev; none means: wait for tick.
func (s *Store) eventsAfter(rev int64) ([]store.Event, <-chan struct{}, error) {
	s.mu.Lock()
	events, ok := s.ring.after(rev)
	tick := s.tick
	s.mu.Unlock()
	if ok {
		return events, tick, nil
	}
	events, err := s.readLog(rev)
	return events, tick, err
}

// readLog reads a batch of events above rev from the log.
func (s *Store) readLog(rev int64) (events []store.Event, err error) {
	if err := s.enter(context.Background()); err != nil {
		return nil, err
	}
	defer s.leave()
	to := min(rev+batchSize, s.durable.Load())
	snap := s.db.NewSnapshot()
	defer func() { err = errors.Join(err, snap.Close()) }()
	if rev < s.compacted.Load() { // after the snapshot: compaction marks before it deletes
		return nil, store.ErrSlow
	}
	it, err := snap.NewIter(&pebble.IterOptions{LowerBound: putLogKey(nil, rev+1), UpperBound: putLogKey(nil, to+1)})
	if err != nil {
		return nil, fmt.Errorf("read log after %d: %w", rev, err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	next := rev + 1
	for ok := it.First(); ok; ok = it.Next() {
		at, err := splitLogKey(it.Key())
		if err != nil {
			return nil, err
		}
		if at != next {
			return nil, fmt.Errorf("store is damaged: log entry %d is missing", next)
		}
		next++
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, fmt.Errorf("read log at %d: %w", at, err)
		}
		ev, err := readEvent(snap, at, v)
		if err != nil {
			return nil, fmt.Errorf("read log at %d: %w", at, err)
		}
		events = append(events, ev)
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("read log after %d: %w", rev, err)
	}
	return events, nil
}

// readEvent joins a log entry with the values it is about.
func readEvent(reader pebble.Reader, rev int64, entry []byte) (store.Event, error) {
	logEntry, err := splitLogEntry(entry)
	if err != nil {
		return store.Event{}, err
	}
	ev := store.Event{Type: logEntry.typ}
	if logEntry.previous != 0 {
		if ev.KV, err = readExact(reader, logEntry.key, logEntry.previous); err != nil {
			return store.Event{}, err
		}
		ev.Prev = ev.KV.Value
	}
	if logEntry.typ == store.Deleted {
		ev.KV.Revision = rev
		return ev, nil
	}
	ev.KV, err = readExact(reader, logEntry.key, rev)
	return ev, err
}

func readExact(r pebble.Reader, key string, rev int64) (kv store.KV, err error) {
	v, closer, err := r.Get(putVersionKey(nil, key, rev))
	if err != nil {
		return store.KV{}, fmt.Errorf("%s at %d: %w", key, rev, err)
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	kv, _, err = splitVersion(v, key, rev)
	kv.Value = append(make([]byte, 0, len(kv.Value)), kv.Value...)
	return kv, err
}
