// SPDX-License-Identifier: Apache-2.0

package policy

import "sync"

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

// queue is a set of keys, with a wake-up channel.
type queue struct {
	wake chan struct{} // capacity 1: there is something to do

	mu   sync.Mutex
	keys map[key]bool
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1), keys: map[key]bool{}} }

func (q *queue) add(k key) {
	q.mu.Lock()
	q.keys[k] = true
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() { wake(q.wake) }

// take empties the queue.
func (q *queue) take() map[key]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.keys
	q.keys = map[key]bool{}
	return out
}
