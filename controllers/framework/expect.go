// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// expectationsLast bounds how long a controller waits for an event that never comes: a pod that was made may be gone again before the
// informer, whose watch was broken, has seen it.
const expectationsLast = 5 * time.Minute

// Expectations remember, per owner, the creations and deletions a controller has asked for and not yet heard of through its
// informer. Until they are met the cache is known to be stale and nothing more may be created or deleted. Owners are told apart by
// their UIDs: what was expected of one never holds up another that has taken its name.
type Expectations struct {
	mu  sync.Mutex
	all map[types.UID]*expectation
}

type expectation struct {
	creates int
	deletes map[types.UID]struct{}
	since   time.Time
}

// NewExpectations returns an empty set.
func NewExpectations() *Expectations { return &Expectations{all: map[types.UID]*expectation{}} }

// Expect replaces what is expected for owner: n creations and the deletion of the objects with these UIDs. Who calls it sees to it
// that Forget is called when the owner is gone, also if that is while a pass runs.
func (e *Expectations) Expect(owner types.UID, n int, deletes ...types.UID) {
	x := &expectation{creates: n, deletes: make(map[types.UID]struct{}, len(deletes)), since: time.Now()}
	for _, uid := range deletes {
		x.deletes[uid] = struct{}{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[owner] = x
}

// Created counts n creations as heard of (or as never going to happen). It reports whether nothing is expected any more.
func (e *Expectations) Created(owner types.UID, n int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[owner]
	if x == nil {
		return true
	}
	x.creates = max(0, x.creates-n)
	return e.metLocked(owner, x)
}

// Deleted counts a deletion as heard of. A UID counts once: a pod's deletion shows first as a deletionTimestamp, then as its end.
func (e *Expectations) Deleted(owner, uid types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[owner]
	if x == nil {
		return true
	}
	delete(x.deletes, uid)
	return e.metLocked(owner, x)
}

// Met reports whether nothing is expected for owner, or it has been for too long.
func (e *Expectations) Met(owner types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[owner]
	return x == nil || e.metLocked(owner, x) || time.Since(x.since) > expectationsLast
}

// Left is how long what is expected of owner may hold it up at most; 0: nothing is.
func (e *Expectations) Left(owner types.UID) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[owner]
	if x == nil || e.metLocked(owner, x) {
		return 0
	}
	return max(0, expectationsLast-time.Since(x.since)) + time.Millisecond
}

// Forget drops owner.
func (e *Expectations) Forget(owner types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, owner)
}

// Len is of how many owners something is expected.
func (e *Expectations) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

func (e *Expectations) metLocked(owner types.UID, x *expectation) bool {
	if x.creates > 0 || len(x.deletes) > 0 {
		return false
	}
	delete(e.all, owner)
	return true
}
