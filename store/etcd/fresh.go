// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"sync"
)

// fresh answers "what is the revision now" for many callers with few questions: who comes while a question is under
// way, which may have been answered before, shares the next one.
type fresh struct {
	ask func(context.Context) (int64, error)

	mu   sync.Mutex
	busy bool
	next *question
}

type question struct {
	done chan struct{}
	rev  int64
	err  error
}

// get returns a revision that was the latest at some moment after the call.
func (f *fresh) get(ctx context.Context) (int64, error) {
	f.mu.Lock()
	q := f.next
	if q == nil {
		q = &question{done: make(chan struct{})}
		f.next = q
	}
	if !f.busy {
		f.busy = true
		go f.run() // ends when no one waits; ask is bounded
	}
	f.mu.Unlock()
	select {
	case <-q.done:
		return q.rev, q.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (f *fresh) run() {
	for {
		f.mu.Lock()
		q := f.next
		f.next = nil
		f.busy = q != nil
		f.mu.Unlock()
		if q == nil {
			return
		}
		q.rev, q.err = f.ask(context.Background())
		close(q.done)
	}
}
