// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"sync"
	"time"
)

// healthAge is how long an answer about etcd's health may be used. It bounds what health checks cost: each agent, load
// balancer and probe sends its own.
const healthAge = 500 * time.Millisecond

// health answers many health checks by one question to etcd: one that is under way, or whose answer is younger than
// healthAge.
type health struct {
	ask func(context.Context) error

	mu   sync.Mutex
	last *checkup
}

// checkup is a question. err is valid after done is closed.
type checkup struct {
	began time.Time
	done  chan struct{}
	err   error
}

// get is nil if etcd has answered a question that began at most healthAge ago, or the one that is under way.
func (h *health) get(ctx context.Context) error {
	last := h.current()
	select {
	case <-last.done:
		return last.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// current returns the question to wait for, and begins one if the last one is too old.
func (h *health) current() *checkup {
	h.mu.Lock()
	defer h.mu.Unlock()
	if last := h.last; last != nil && (!last.ended() || time.Since(last.began) < healthAge) {
		return last
	}
	next := &checkup{began: time.Now(), done: make(chan struct{})}
	h.last = next
	go func() { // ends with the question, which is bounded
		defer close(next.done)
		next.err = h.ask(context.Background())
	}()
	return next
}

func (c *checkup) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
