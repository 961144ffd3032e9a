// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"keelson/store"
)

// compaction is what the store forgets.
type compaction struct {
	running chan struct{} // holds a token while Compact runs
	marked  int64         // the oldest readable revision as the disk has it; the token's holder may use it
	history history       // guarded by Store.mu
}

// history decides when old revisions go. It is asked at each write and never runs by itself (P7).
type history struct {
	age        time.Duration
	bytes      int64
	superseded int64 // bytes of old versions and log entries since the store was opened
	samples    []sample
	busy       bool // a compaction is under way
}

// sample says how much had been superseded when a revision was written.
type sample struct {
	at         time.Time
	rev        int64
	superseded int64
}

// parts is into how many samples the history is divided: compaction removes a part at a time.
const parts = 8

func (h *history) sample(now time.Time, rev int64) {
	h.samples = append(h.samples, sample{now, rev, h.superseded})
}

// due is called for each durable write; it returns the revision to compact to, 0 for none.
func (h *history) due(now time.Time, rev int64) int64 {
	last := h.samples[len(h.samples)-1]
	if now.Sub(last.at) < h.age/parts && h.superseded-last.superseded < h.bytes/parts {
		return 0
	}
	h.sample(now, rev)
	if h.busy {
		return 0
	}
	old := 0
	for old < len(h.samples)-1 &&
		(now.Sub(h.samples[old].at) > h.age || h.superseded-h.samples[old].superseded > h.bytes) {
		old++
	}
	if old == 0 {
		return 0
	}
	target := h.samples[old-1].rev
	h.samples = slices.Delete(h.samples, 0, old)
	h.busy = true
	return target
}

// compactLater runs one compaction in the background; Close waits for it.
func (s *Store) compactLater(rev int64) {
	s.background.Go(func() {
		err := s.Compact(context.Background(), rev)
		if err != nil && !errors.Is(err, store.ErrClosed) {
			s.log.Error("cannot compact history", "rev", rev, "err", err)
		}
		s.mu.Lock()
		s.compaction.history.busy = false
		s.mu.Unlock()
	})
}

// compactBatch is how many log entries one batch forgets, so that writers wait for one batch only.
const compactBatch = 256

// Compact forgets history before rev. Compacting to an older revision than before does nothing.
func (s *Store) Compact(ctx context.Context, rev int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if rev > s.durable.Load() {
		return store.ErrFuture
	}
	select {
	case s.compaction.running <- struct{}{}: // one at a time, or an older mark could replace a newer one
		defer func() { <-s.compaction.running }()
	case <-ctx.Done():
		return ctx.Err()
	}
	from, err := s.markCompacted(ctx, rev)
	if err != nil || from == 0 {
		return err
	}
	lower := []byte{logPrefix} // what an interrupted compaction left
	for next := from + 1; next <= rev; next += compactBatch {
		select {
		case <-s.done: // the next compaction after a restart takes up what is left
			return store.ErrClosed
		default:
		}
		last := min(next+compactBatch-1, rev)
		if err := s.forget(ctx, lower, last); err != nil {
			return fmt.Errorf("compact to %d: %w", rev, err)
		}
		lower = putLogKey(nil, last+1)
	}
	return nil
}

// markCompacted makes reads below rev fail before anything they would need is gone. It returns the revision compacted
// to before, or 0 when that was not below rev.
func (s *Store) markCompacted(ctx context.Context, rev int64) (int64, error) {
	s.mu.Lock()
	s.compacted.Store(max(s.compacted.Load(), rev))
	s.mu.Unlock()
	if s.compaction.marked >= rev { // what is on disk counts: writing the mark may have failed before
		return 0, nil
	}
	b := s.db.NewBatch()
	if err := b.Set(keyCompacted, putNumber(rev), nil); err != nil {
		return 0, err
	}
	if err := s.submitBatch(ctx, b); err != nil {
		return 0, fmt.Errorf("mark history compacted to %d: %w", rev, err)
	}
	before := s.compaction.marked
	s.compaction.marked = rev
	return max(before, firstRevision), nil
}

// forget deletes the log entries from lower up to rev with the versions they superseded, and their tombstones.
func (s *Store) forget(ctx context.Context, lower []byte, rev int64) error {
	batch := s.db.NewBatch()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: putLogKey(nil, rev+1)})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		err = forgetEntry(batch, it)
	}
	if err = errors.Join(err, it.Error(), it.Close()); err != nil {
		return errors.Join(err, batch.Close())
	}
	if batch.Empty() {
		return batch.Close()
	}
	return s.submitBatch(ctx, batch)
}

func forgetEntry(batch *pebble.Batch, it *pebble.Iterator) error {
	rev, err := splitLogKey(it.Key())
	if err != nil {
		return err
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return err
	}
	e, err := splitLogEntry(v)
	if err != nil {
		return err
	}
	if e.previous != 0 {
		err = batch.Delete(putVersionKey(nil, e.key, e.previous), nil)
	}
	if e.typ == store.Deleted {
		err = errors.Join(err, batch.Delete(putVersionKey(nil, e.key, rev), nil))
	}
	return errors.Join(err, batch.Delete(it.Key(), nil))
}
