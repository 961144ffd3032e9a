// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Evictions tracks the victims of each preemptor: whether the writes that evict them are done, and which victims are
// not gone yet. The profiles share it. A preemptor is a pod, or a pod group by the UID of its object.
type Evictions struct {
	mu          sync.Mutex
	byPreemptor map[types.UID]*eviction
	byVictim    map[types.UID][]types.UID // preemptors, by victim
}

type eviction struct {
	writes  int // victims whose eviction is still to be written
	victims map[types.UID]bool
	failed  error
}

// NewEvictions returns an empty Evictions.
func NewEvictions() *Evictions {
	return &Evictions{byPreemptor: map[types.UID]*eviction{}, byVictim: map[types.UID][]types.UID{}}
}

// Pending reports whether a preemptor waits for victims that are not gone yet.
func (e *Evictions) Pending(preemptor types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byPreemptor[preemptor] != nil
}

// writing reports whether evictions of a preemptor are still to be written.
func (e *Evictions) writing(preemptor types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.byPreemptor[preemptor]
	return v != nil && v.writes > 0
}

// start records the victims of a preemptor.
func (e *Evictions) start(preemptor types.UID, victims []types.UID) {
	e.Forget(preemptor)
	e.mu.Lock()
	defer e.mu.Unlock()
	v := &eviction{writes: len(victims), victims: map[types.UID]bool{}}
	for _, uid := range victims {
		v.victims[uid] = true
		e.byVictim[uid] = append(e.byVictim[uid], preemptor)
	}
	e.byPreemptor[preemptor] = v
}

// written records that the eviction of a victim was written or failed, or that the victim is gone already. last: no
// other eviction is to be written; err is then the error of any that failed.
func (e *Evictions) written(preemptor, victim types.UID, gone bool, failed error) (last bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	eviction := e.byPreemptor[preemptor]
	if eviction == nil {
		return false, nil
	}
	eviction.writes--
	if failed != nil {
		eviction.failed = failed
	}
	if gone || failed != nil {
		e.removeVictimLocked(preemptor, eviction, victim)
	}
	e.dropIfDoneLocked(preemptor, eviction)
	return eviction.writes == 0, eviction.failed
}

// VictimGone records that a pod is gone: no preemptor waits for it any more.
func (e *Evictions) VictimGone(victim types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, preemptor := range slices.Clone(e.byVictim[victim]) {
		if v := e.byPreemptor[preemptor]; v != nil {
			e.removeVictimLocked(preemptor, v, victim)
			e.dropIfDoneLocked(preemptor, v)
		}
	}
}

// Forget records that a preemptor no longer waits for its victims. Evictions that are still to be written are written
// nevertheless.
func (e *Evictions) Forget(preemptor types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.byPreemptor[preemptor]
	if v == nil {
		return
	}
	for victim := range v.victims {
		e.removeVictimLocked(preemptor, v, victim)
	}
	e.dropIfDoneLocked(preemptor, v)
}

func (e *Evictions) removeVictimLocked(preemptor types.UID, v *eviction, victim types.UID) {
	delete(v.victims, victim)
	rest := slices.DeleteFunc(e.byVictim[victim], func(uid types.UID) bool { return uid == preemptor })
	if e.byVictim[victim] = rest; len(rest) == 0 {
		delete(e.byVictim, victim)
	}
}

func (e *Evictions) dropIfDoneLocked(preemptor types.UID, v *eviction) {
	if v.writes == 0 && len(v.victims) == 0 && e.byPreemptor[preemptor] == v {
		delete(e.byPreemptor, preemptor)
	}
}
