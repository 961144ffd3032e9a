// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
)

// hintClass holds unschedulable pods for which every QueueingHint returns the same result: the same plugins refused
// them, and they have the same class (PodInfo.AppendClass), priority and preemption policy. The hints are called for
// one of them, so the cost of an event depends on the number of classes, not on the number of pods.
type hintClass struct {
	key    string
	items  []*Item
	single bool // a hint depends on more than the pod's class, so the item has a hint class of its own
}

// joinClassLocked adds an item that becomes unschedulable to its hint class, which it creates if needed.
func (q *Queue) joinClassLocked(it *Item) {
	single := it.headOf != nil || !it.rules.hintsByClass(it.refusedBy)
	b := q.key[:0]
	if single {
		b = append(b, it.Pod.Pod.UID...)
		if it.headOf != nil {
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
	a := q.hintClasses[string(b)]
	if a == nil {
		a = &hintClass{key: string(b), single: single}
		q.hintClasses[a.key] = a
	}
	it.hintClass = a
	it.classPos = len(a.items)
	a.items = append(a.items, it)
}

func (q *Queue) leaveClassLocked(it *Item) {
	hintClass := it.hintClass
	if hintClass == nil {
		return
	}
	last := len(hintClass.items) - 1
	hintClass.items[it.classPos] = hintClass.items[last]
	hintClass.items[it.classPos].classPos = it.classPos
	hintClass.items[last] = nil
	hintClass.items = hintClass.items[:last]
	it.hintClass = nil
	if last == 0 {
		delete(q.hintClasses, hintClass.key)
	}
}

// hintsByClass reports whether every hint of the plugins returns the same result for all pods of a class.
func (r *Rules) hintsByClass(plugins []string) bool {
	for _, name := range plugins {
		for _, h := range r.Hints[name] {
			if h.QueueingHintFn != nil && !h.ByClass {
				return false
			}
		}
	}
	return true
}

// helpedByLocked returns the unschedulable items that an event may help, longest waiting first.
func (q *Queue) helpedByLocked(event *framework.Event) []*Item {
	if q.waitedKinds&event.Kinds == 0 {
		return nil
	}
	var helped, nominated []*Item
	if event.NodeView != nil { // a pod that is nominated to the node has more room there than the others of its class
		for _, p := range event.NodeView.Nominated {
			if it := q.items[p.Pod.UID]; it != nil && it.hintClass != nil && !it.hintClass.single &&
				!slices.Contains(nominated, it) {
				nominated = append(nominated, it)
			}
		}
	}
	for _, it := range nominated {
		if it.interests&event.Kinds != 0 && q.helpsLocked(it, event) {
			helped = append(helped, it)
		}
	}
	for _, a := range q.hintClasses {
		if a.items[0].interests&event.Kinds == 0 {
			continue
		}
		i := slices.IndexFunc(a.items, func(it *Item) bool {
			return !q.ownDeletionLocked(it, event) && !slices.Contains(nominated, it)
		})
		if i < 0 || !q.helpsLocked(a.items[i], event) {
			continue
		}
		for _, it := range a.items {
			if !q.ownDeletionLocked(it, event) && !slices.Contains(nominated, it) {
				helped = append(helped, it)
			}
		}
	}
	slices.SortStableFunc(helped, func(a, b *Item) int { return a.Since.Compare(b.Since) })
	return helped
}

// ownDeletionLocked reports whether an event is the deletion of the item's own pod. The resources that this frees do
// not help the pod.
func (q *Queue) ownDeletionLocked(it *Item, e *framework.Event) bool {
	return e.Kinds == framework.AssignedPodDelete && e.OldPod != nil && it.headOf == nil &&
		e.OldPod.UID == it.Pod.Pod.UID
}

// forceActivate is the event label of pods that Activate moves.
const forceActivate = "ForceActivate"

// Activate makes the queue try a pod again if it is unschedulable or in flight. It is for changes that no event
// reports.
func (q *Queue) Activate(uid types.UID) {
	q.mu.Lock()
	defer q.unlock()
	it := q.items[uid]
	if it == nil {
		return
	}
	if it.group != nil {
		it = it.group.head
	}
	switch it.where {
	case inUnschedulable:
		q.leaveLocked(it)
		q.requeueLocked(it, forceActivate)
	case inFlight:
		it.forced = true
		if it.headOf != nil {
			it.headOf.again = true
		}
	}
}
