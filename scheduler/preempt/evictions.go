// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Evictions are under way: whose victims are being told to go, and which of them have not gone yet. Profiles share them. Preemptors are pods, or
// pod groups by the UIDs of their objects.
type Evictions struct {
	mu sync.Mutex
	of map[types.UID]*eviction
	by map[types.UID][]types.UID // preemptors, by victim
}

type eviction struct {
	writes int // victims that are still to be told
	left   map[types.UID]bool
	failed error
}

// NewEvictions has none.
func NewEvictions() *Evictions {
	return &Evictions{of: map[types.UID]*eviction{}, by: map[types.UID][]types.UID{}}
}

// Of tells whether victims of a preemptor are still to go. It forgets of a pod that waits for them no more.
func (e *Evictions) Of(preemptor types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[preemptor] != nil
}

// busy tells whether victims of a preemptor are still to be told.
func (e *Evictions) busy(preemptor types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.of[preemptor]
	return v != nil && v.writes > 0
}

// begin notes whom a preemptor drives away.
func (e *Evictions) begin(preemptor types.UID, victims []types.UID) {
	e.Forget(preemptor)
	e.mu.Lock()
	defer e.mu.Unlock()
	v := &eviction{writes: len(victims), left: map[types.UID]bool{}}
	for _, uid := range victims {
		v.left[uid] = true
		e.by[uid] = append(e.by[uid], preemptor)
	}
	e.of[preemptor] = v
}

// told notes that a victim has been told, or is gone already, or that telling it failed. last: there is no other to be told; err is then of any
// that failed.
func (e *Evictions) told(preemptor, victim types.UID, gone bool, failed error) (last bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.of[preemptor]
	if v == nil {
		return false, nil
	}
	v.writes--
	if failed != nil {
		v.failed = failed
	}
	if gone || failed != nil {
		e.goneLocked(preemptor, v, victim)
	}
	e.tidyLocked(preemptor, v)
	return v.writes == 0, v.failed
}

// Gone notes that a pod is gone: nobody waits for it any more.
func (e *Evictions) Gone(victim types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, preemptor := range slices.Clone(e.by[victim]) {
		if v := e.of[preemptor]; v != nil {
			e.goneLocked(preemptor, v, victim)
			e.tidyLocked(preemptor, v)
		}
	}
}

// Forget notes that a preemptor waits for its victims no more. Those that are still to be told are told nevertheless.
func (e *Evictions) Forget(preemptor types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.of[preemptor]
	if v == nil {
		return
	}
	for victim := range v.left {
		e.goneLocked(preemptor, v, victim)
	}
	e.tidyLocked(preemptor, v)
}

func (e *Evictions) goneLocked(preemptor types.UID, v *eviction, victim types.UID) {
	delete(v.left, victim)
	rest := slices.DeleteFunc(e.by[victim], func(uid types.UID) bool { return uid == preemptor })
	if e.by[victim] = rest; len(rest) == 0 {
		delete(e.by, victim)
	}
}

func (e *Evictions) tidyLocked(preemptor types.UID, v *eviction) {
	if v.writes == 0 && len(v.left) == 0 && e.of[preemptor] == v {
		delete(e.of, preemptor)
	}
}
