// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
)

// alike are unschedulable pods that were refused by the same plugins and whom the same events help, so that one of them is asked about for all:
// what an event costs follows how many kinds of pods wait, and not how many pods. A pod about which a hint is of its own is alone.
type alike struct {
	key   string
	items []*Item
	alone bool
}

// joinAlikeLocked puts an item that becomes unschedulable to those like it.
func (q *Queue) joinAlikeLocked(it *Item) {
	alone := it.leads != nil || !it.rules.byClass(it.refusedBy)
	b := q.key[:0]
	if alone {
		b = append(b, it.Pod.Pod.UID...)
		if it.leads != nil {
			b = append(append(append(b, it.key.Namespace...), '/'), it.key.Name...)
		}
	} else {
		b = append(append(b, 0), it.Pod.Pod.Spec.SchedulerName...)
		for _, name := range it.refusedBy {
			b = append(append(b, 0), name...)
		}
		b = append(binary.AppendVarint(append(b, 0), int64(it.Pod.Priority)), 0)
		if policy := it.Pod.Pod.Spec.PreemptionPolicy; policy != nil {
			b = append(b, *policy...)
		}
		b = it.Pod.AppendClass(append(b, 0))
	}
	q.key = b
	a := q.kinds[string(b)]
	if a == nil {
		a = &alike{key: string(b), alone: alone}
		q.kinds[a.key] = a
	}
	it.alike, it.place = a, len(a.items)
	a.items = append(a.items, it)
}

func (q *Queue) leaveAlikeLocked(it *Item) {
	a := it.alike
	if a == nil {
		return
	}
	last := len(a.items) - 1
	a.items[it.place] = a.items[last]
	a.items[it.place].place = it.place
	a.items[last] = nil
	a.items = a.items[:last]
	it.alike = nil
	if last == 0 {
		delete(q.kinds, a.key)
	}
}

// byClass tells whether all hints of the plugins answer the same for all pods of a class.
func (r *Rules) byClass(plugins []string) bool {
	for _, name := range plugins {
		for _, h := range r.Hints[name] {
			if h.Worth != nil && !h.ByClass {
				return false
			}
		}
	}
	return true
}

// helpedLocked are the unschedulable pods that an event may help, those that wait for longest first.
func (q *Queue) helpedLocked(e *framework.Event) []*Item {
	if q.waited&e.Kinds == 0 {
		return nil
	}
	var helped, special []*Item
	if e.Room != nil { // for the pods nominated to it, it is another room than for those like them
		for _, p := range e.Room.Coming {
			if it := q.items[p.Pod.UID]; it != nil && it.alike != nil && !it.alike.alone && !slices.Contains(special, it) {
				special = append(special, it)
			}
		}
	}
	for _, it := range special {
		if it.interests&e.Kinds != 0 && q.helpsLocked(it, e) {
			helped = append(helped, it)
		}
	}
	for _, a := range q.kinds {
		if a.items[0].interests&e.Kinds == 0 {
			continue
		}
		i := slices.IndexFunc(a.items, func(it *Item) bool { return !q.ownLocked(it, e) && !slices.Contains(special, it) })
		if i < 0 || !q.helpsLocked(a.items[i], e) {
			continue
		}
		for _, it := range a.items {
			if !q.ownLocked(it, e) && !slices.Contains(special, it) {
				helped = append(helped, it)
			}
		}
	}
	slices.SortStableFunc(helped, func(a, b *Item) int { return a.Since.Compare(b.Since) })
	return helped
}

// ownLocked tells of an event that is about the room of the pod itself, which is no news to it.
func (q *Queue) ownLocked(it *Item, e *framework.Event) bool {
	return e.Kinds == framework.PodDelete && e.OldPod != nil && it.leads == nil && e.OldPod.UID == it.Pod.Pod.UID
}

// woken is why a pod waits that was woken by name.
const woken = "ForceActivate"

// Wake has a pod tried again, if it is unschedulable or being tried: what it waited for will not come as an event.
func (q *Queue) Wake(uid types.UID) {
	q.mu.Lock()
	defer q.unlock()
	it := q.items[uid]
	if it == nil {
		return
	}
	if it.of != nil {
		it = it.of.head
	}
	switch it.where {
	case inUnschedulable:
		q.leaveLocked(it)
		q.againLocked(it, woken)
	case inFlight:
		it.recall = true
		if it.leads != nil {
			it.leads.joined = true
		}
	}
}
