// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// expectationsTimeout limits how long a controller waits for an event that never comes: a pod may be created and
// deleted while the informer's watch is interrupted.
const expectationsTimeout = 5 * time.Minute

// Expectations store, per owner, the creations and deletions that a controller has requested and not yet observed
// through its informer. Until they are met the cache is stale, and nothing more may be created or deleted. Owners are
// identified by UID, so that a new owner with the same name does not wait for an old one's expectations.
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

// Expect replaces the expectations of owner: n creations and the deletions of these UIDs. The caller must ensure that
// DeleteExpectations is called when the owner is deleted, even during a pass.
func (e *Expectations) Expect(owner types.UID, n int, deletes ...types.UID) {
	x := &expectation{creates: n, deletes: make(map[types.UID]struct{}, len(deletes)), since: time.Now()}
	for _, uid := range deletes {
		x.deletes[uid] = struct{}{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[owner] = x
}

// CreationObserved counts n creations as observed, or as never going to happen. It reports whether nothing is expected
// any more.
func (e *Expectations) CreationObserved(owner types.UID, n int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[owner]
	if x == nil {
		return true
	}
	x.creates = max(0, x.creates-n)
	return e.satisfiedLocked(owner, x)
}

// DeletionObserved counts a deletion as observed. Each UID counts once, because a deletion shows first as a
// deletionTimestamp and then as the removal.
func (e *Expectations) DeletionObserved(owner, uid types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[owner]
	if x == nil {
		return true
	}
	delete(x.deletes, uid)
	return e.satisfiedLocked(owner, x)
}

// Satisfied reports whether nothing is expected for owner, or the expectations are too old.
func (e *Expectations) Satisfied(owner types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[owner]
	return x == nil || e.satisfiedLocked(owner, x) || time.Since(x.since) > expectationsTimeout
}

// ExpiresIn is how long the expectations may still delay owner; 0: there are none.
func (e *Expectations) ExpiresIn(owner types.UID) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.all[owner]
	if x == nil || e.satisfiedLocked(owner, x) {
		return 0
	}
	return max(0, expectationsTimeout-time.Since(x.since)) + time.Millisecond
}

// DeleteExpectations drops owner.
func (e *Expectations) DeleteExpectations(owner types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, owner)
}

// Len is the number of owners with expectations.
func (e *Expectations) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

func (e *Expectations) satisfiedLocked(owner types.UID, x *expectation) bool {
	if x.creates > 0 || len(x.deletes) > 0 {
		return false
	}
	delete(e.all, owner)
	return true
}
