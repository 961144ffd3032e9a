// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"keelson/store"
)

// Watch delivers the writes under prefix after revision from.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	if from == 0 {
		var err error
		if from, err = s.Revision(ctx); err != nil {
			return nil, err
		}
	} else if err := s.readable(ctx, from); err != nil {
		return nil, err
	}
	_, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return store.Fed(ctx, s.background.Go, func(ctx context.Context, events chan<- []store.Event) error {
		return s.feed(ctx, events, prefix, from)
	}), nil
}

// readable answers ErrCompacted when rev is: etcd itself would let a watch begin with the compacted revision's own
// write, whose value before is gone.
func (s *Store) readable(ctx context.Context, rev int64) error {
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, err = s.get(bounded, "keelson", clientv3.WithCountOnly(), clientv3.WithRev(rev))
	if errors.Is(err, rpctypes.ErrFutureRev) {
		return nil
	}
	return s.meaning(ctx, err)
}

// The delays before a broken watch is taken up again.
const (
	firstDelay = 50 * time.Millisecond
	lastDelay  = 2 * time.Second
)

// feed delivers until ctx ends, the store closes or history is gone. When etcd is away it waits for it.
func (s *Store) feed(ctx context.Context, out chan<- []store.Event, prefix string, cursor int64) error {
	delay := firstDelay
	for {
		next, err := s.follow(ctx, out, prefix, cursor)
		if next > cursor {
			cursor = next
			delay = firstDelay
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // being stopped is no failure
		case errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrCompacted):
			return err
		case err != nil && !passing(err):
			return s.meaning(ctx, err)
		}
		s.log.Warn("watch on etcd broke off, goes on", "rev", cursor, "err", err)
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-s.done:
		}
		timer.Stop()
		delay = min(2*delay, lastDelay)
	}
}

// follow runs one watch of etcd after cursor and returns the last revision that it has delivered.
func (s *Store) follow(ctx context.Context, out chan<- []store.Event, prefix string, cursor int64) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := []clientv3.OpOption{clientv3.WithRev(cursor + 1), clientv3.WithPrevKV(), clientv3.WithPrefix()}
	answers := s.client.Watch(clientv3.WithRequireLeader(ctx), prefix, opts...)
	for {
		var watchResponse clientv3.WatchResponse
		var ok bool
		select {
		case watchResponse, ok = <-answers:
		case <-s.done:
			return cursor, store.ErrClosed
		}
		switch {
		case !ok:
			return cursor, errors.Join(ctx.Err(), rpctypes.ErrNoLeader)
		case watchResponse.CompactRevision != 0:
			return cursor, store.ErrCompacted
		case watchResponse.Err() != nil:
			return cursor, watchResponse.Err()
		case len(watchResponse.Events) == 0:
			continue
		}
		s.observe(watchResponse.Header)
		events, err := translate(watchResponse.Events)
		if err != nil {
			return cursor, err
		}
		select {
		case out <- events:
			cursor = events[len(events)-1].KV.Revision
		case <-ctx.Done():
			return cursor, ctx.Err()
		case <-s.done:
			return cursor, store.ErrClosed
		}
	}
}

func translate(in []*clientv3.Event) ([]store.Event, error) {
	out := make([]store.Event, len(in))
	for i, event := range in {
		ev := store.Event{Type: store.Created, KV: fromEtcd(event.Kv)}
		if !event.IsCreate() {
			if event.PrevKv == nil { // compaction overtook the watch
				return nil, store.ErrCompacted
			}
			ev.Type = store.Updated
			ev.Prev = event.PrevKv.Value
			if ev.Prev == nil {
				ev.Prev = []byte{}
			}
		}
		if event.Type == clientv3.EventTypeDelete {
			ev.Type = store.Deleted
			ev.KV = fromEtcd(event.PrevKv)
			ev.KV.Revision = event.Kv.ModRevision
		}
		out[i] = ev
	}
	return out, nil
}
