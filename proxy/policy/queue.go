// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync"

	"keelson/lib/signal"
)

// key names an object that has changed.
type key struct {
	kind            kind
	namespace, name string
}

type kind int

const (
	policyKey kind = iota
	namespaceKey
	podKey
)

// queue is a set of keys, with a wake-up call.
type queue struct {
	wake signal.Signal // there is something to do

	mu   sync.Mutex
	keys map[key]bool
}

func newQueue() *queue { return &queue{wake: signal.New(), keys: map[key]bool{}} }

func (q *queue) add(k key) {
	q.mu.Lock()
	q.keys[k] = true
	q.mu.Unlock()
	q.wake.Notify()
}

// take empties the queue.
func (q *queue) take() map[key]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.keys
	q.keys = map[key]bool{}
	return out
}
