// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// expectationsLast bounds how long a lost event can hold up a controller.
const expectationsLast = 5 * time.Minute

// Expectations remember, per key, the creations and deletions a controller has asked for and not yet heard of through its
// informer. Until they are met the cache is known to be stale and nothing more may be created or deleted.
type Expectations struct {
	mu  sync.Mutex
	all map[Key]*expectation
}

type expectation struct {
	creates int
	deletes map[types.UID]struct{}
	since   time.Time
}

// NewExpectations returns an empty set.
func NewExpectations() *Expectations { return &Expectations{all: map[Key]*expectation{}} }

// Expect replaces what is expected for key: n creations and the deletion of the objects with these UIDs.
func (e *Expectations) Expect(key Key, n int, deletes ...types.UID) {
	x := &expectation{creates: n, deletes: make(map[types.UID]struct{}, len(deletes)), since: time.Now()}
	for _, uid := range deletes {
		x.deletes[uid] = struct{}{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[key] = x
}

// Created counts n creations as heard of (or as never going to happen). It reports whether nothing is expected any more.
func (e *Expectations) Created(key Key, n int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[key]
	if x == nil {
		return true
	}
	x.creates = max(0, x.creates-n)
	return e.metLocked(key, x)
}

// Deleted counts a deletion as heard of. A UID counts once: a pod's deletion shows first as a deletionTimestamp, then as its end.
func (e *Expectations) Deleted(key Key, uid types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[key]
	if x == nil {
		return true
	}
	delete(x.deletes, uid)
	return e.metLocked(key, x)
}

// Met reports whether nothing is expected for key, or it has been for too long.
func (e *Expectations) Met(key Key) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[key]
	return x == nil || e.metLocked(key, x) || time.Since(x.since) > expectationsLast
}

// Forget drops key.
func (e *Expectations) Forget(key Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, key)
}

func (e *Expectations) metLocked(key Key, x *expectation) bool {
	if x.creates > 0 || len(x.deletes) > 0 {
		return false
	}
	delete(e.all, key)
	return true
}
