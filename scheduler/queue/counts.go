// SPDX-License-Identifier: Apache-2.0

package queue

// Place is where a pod waits, as Kubernetes' metrics call it.
type Place string

// The places. Pods whose backoff follows an error wait in backoff too.
const (
	Active        Place = "active"
	Backoff       Place = "backoff"
	Unschedulable Place = "unschedulable"
	Gated         Place = "gated"
)

// places of what waits in a heap.
var places = map[where]Place{inActive: Active, inBackoff: Backoff, inErrors: Backoff, inUnschedulable: Unschedulable}

// Counts are the pods that wait, by place, and those that a plugin keeps from a node, by plugin and profile.
func (q *Queue) Counts() (waiting map[Place]int, refusedBy map[[2]string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting = map[Place]int{Active: q.countLocked(&q.active), Backoff: q.countLocked(&q.backoff) + q.countLocked(&q.errors), Unschedulable: q.countLocked(&q.refused), Gated: 0}
	refusedBy = map[[2]string]int{}
	count := func(it *Item, by []string) {
		for _, name := range by {
			refusedBy[[2]string{name, it.Pod.Pod.Spec.SchedulerName}]++
		}
	}
	for _, it := range q.items {
		switch it.where {
		case nowhere:
			waiting[Gated]++
			refusedBy[[2]string{it.gatedBy, it.Pod.Pod.Spec.SchedulerName}]++
		case inGroup:
			if by := it.of.head; by.where == inUnschedulable || by.where == inBackoff {
				count(it, by.refusedBy)
			}
		case inUnschedulable, inBackoff:
			count(it, it.refusedBy)
		}
	}
	return waiting, refusedBy
}

// countLocked counts the pods of a heap: a group is as many as wait with it.
func (q *Queue) countLocked(h *heap) int {
	n := len(h.items)
	if len(q.groups) == 0 {
		return n
	}
	for _, it := range h.items {
		if it.leads != nil {
			n += it.leads.ready - 1
		}
	}
	return n
}
