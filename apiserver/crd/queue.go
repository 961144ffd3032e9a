// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"sync"
	"time"
)

// queue holds the names of definitions to look at, each once.
type queue struct {
	wake chan struct{} // has room for one

	mu    sync.Mutex
	names map[string]struct{}
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1), names: map[string]struct{}{}} }

func (q *queue) add(name string) {
	q.mu.Lock()
	q.names[name] = struct{}{}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// later adds name after d.
func (q *queue) later(name string, d time.Duration) { time.AfterFunc(d, func() { q.add(name) }) }

// take empties the queue.
func (q *queue) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]string, 0, len(q.names))
	for name := range q.names {
		out = append(out, name)
	}
	clear(q.names)
	return out
}
