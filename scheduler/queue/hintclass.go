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

// hintClasses partition the unschedulable items: the same events help the items of one class. Queue.mu guards them.
type hintClasses struct {
	byKey map[string]*hintClass
	key   []byte // a buffer for the key of a class
	// kinds includes the interests of all items, and perhaps of items that were there before. So an event of another
	// kind helps none of them.
	kinds framework.EventKinds
}

// join adds an item that becomes unschedulable to its class, which it creates if needed.
func (c *hintClasses) join(it *Item) {
	if len(c.byKey) == 0 {
		c.kinds = 0
	}
	c.kinds |= it.interests
	single := it.headOf != nil || !it.rules.hintsByClass(it.refusedBy)
	b := c.key[:0]
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
	c.key = b
	a := c.byKey[string(b)]
	if a == nil {
		a = &hintClass{key: string(b), single: single}
		c.byKey[a.key] = a
	}
	it.hintClass = a
	it.classPos = len(a.items)
	a.items = append(a.items, it)
}

// leave removes an item from its class, if it has one.
func (c *hintClasses) leave(it *Item) {
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
		delete(c.byKey, hintClass.key)
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

// helpedBy returns the unschedulable items that an event may help, longest waiting first. items are those of the queue.
func (c *hintClasses) helpedBy(event *framework.Event, items map[types.UID]*Item) []*Item {
	if c.kinds&event.Kinds == 0 {
		return nil
	}
	var helped, nominated []*Item
	if event.NodeView != nil { // a pod that is nominated to the node has more room there than the others of its class
		for _, p := range event.NodeView.Nominated {
			if it := items[p.Pod.UID]; it != nil && it.hintClass != nil && !it.hintClass.single &&
				!slices.Contains(nominated, it) {
				nominated = append(nominated, it)
			}
		}
	}
	for _, it := range nominated {
		if it.interests&event.Kinds != 0 && it.helpedBy(event) {
			helped = append(helped, it)
		}
	}
	for _, a := range c.byKey {
		if a.items[0].interests&event.Kinds == 0 {
			continue
		}
		i := slices.IndexFunc(a.items, func(it *Item) bool {
			return !it.isDeletedBy(event) && !slices.Contains(nominated, it)
		})
		if i < 0 || !a.items[i].helpedBy(event) {
			continue
		}
		for _, it := range a.items {
			if !it.isDeletedBy(event) && !slices.Contains(nominated, it) {
				helped = append(helped, it)
			}
		}
	}
	slices.SortStableFunc(helped, func(a, b *Item) int { return a.Since.Compare(b.Since) })
	return helped
}

// isDeletedBy reports whether an event is the deletion of the item's own pod. The resources that this frees do not
// help the pod.
func (it *Item) isDeletedBy(e *framework.Event) bool {
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
