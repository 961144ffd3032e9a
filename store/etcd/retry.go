// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"keelson/store"
)

// A call is repeated while etcd's members choose a leader or one of them is gone. An attempt is given up after
// firstAttempt, the next after twice as long: a member whose leader died keeps a request for seven seconds.
const (
	firstAttempt = time.Second
	firstPause   = 20 * time.Millisecond
	lastPause    = 500 * time.Millisecond
)

// again calls f until it returns something else than an error that goes away by itself, or ctx ends.
func (s *Store) again(ctx context.Context, f func(context.Context) error) error {
	limit := firstAttempt
	pause := firstPause
	var last error
	for {
		attempt, cancel := context.WithTimeout(ctx, limit)
		err := f(attempt)
		cancel()
		switch {
		case err == nil || !repeatable(err):
			return err
		case ctx.Err() == nil || last == nil:
			last = err // the later ones say only that the time is over
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-s.done:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return last
		}
		select {
		case <-s.done:
			return last
		default:
		}
		limit *= 2
		pause = min(2*pause, lastPause)
	}
}

// repeatable reports whether another attempt, at another member perhaps, may succeed.
func repeatable(err error) bool {
	if errors.Is(err, rpctypes.ErrNoSpace) || tooLarge(err) {
		return false
	}
	return errors.Is(err, context.DeadlineExceeded) || passing(err)
}

// get reads keys, and repeats that.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (r *clientv3.GetResponse, err error) {
	err = s.again(ctx, func(attempt context.Context) error {
		var err error
		r, err = s.client.Get(attempt, key, opts...)
		return err
	})
	return r, err
}

// put is the done of a write of a value. Values hold UIDs and times: the same bytes in the same place are this write.
func put(value []byte) func(*clientv3.Event) bool {
	return func(e *clientv3.Event) bool {
		return e.Type == clientv3.EventTypePut && bytes.Equal(e.Kv.Value, value)
	}
}

// lookBack is for how long history is read where it may hold nothing of a key: a member sends what it has within
// 100 ms.
const lookBack = 300 * time.Millisecond

// happened looks in the history after revision base for an attempt at w whose answer did not arrive. It returns the
// write's event, or nil if it has not happened. It may still happen then; but w's condition lets one attempt happen.
func (s *Store) happened(ctx context.Context, w write, base int64) (*clientv3.Event, error) {
	r, err := s.client.Get(ctx, w.key, clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	last := int64(0)
	if len(r.Kvs) > 0 {
		last = r.Kvs[0].ModRevision
	}
	if last != 0 && last <= base {
		return nil, nil // no one has written the key
	}
	whole := ctx
	if last == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lookBack)
		defer cancel()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for answer := range s.client.Watch(ctx, w.key, clientv3.WithRev(base+1), clientv3.WithPrevKV()) {
		err := answer.Err()
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, rpctypes.ErrCompacted):
			return nil, &store.UnavailableError{Cause: errors.New("history of a write without an answer is compacted")}
		case err != nil:
			return nil, err
		}
		for _, e := range answer.Events {
			if w.is(e) {
				return e, nil
			}
			if last != 0 && e.Kv.ModRevision >= last {
				return nil, nil
			}
		}
	}
	if last == 0 && whole.Err() == nil {
		return nil, nil
	}
	return nil, errors.Join(whole.Err(), rpctypes.ErrTimeout)
}
