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
	waiting = map[Place]int{Active: len(q.active.items), Backoff: len(q.backoff.items) + len(q.errors.items), Unschedulable: len(q.refused.items), Gated: 0}
	refusedBy = map[[2]string]int{}
	for _, it := range q.items {
		switch it.where {
		case nowhere:
			waiting[Gated]++
			refusedBy[[2]string{it.gatedBy, it.Pod.Pod.Spec.SchedulerName}]++
		case inUnschedulable, inBackoff:
			for _, name := range it.refusedBy {
				refusedBy[[2]string{name, it.Pod.Pod.Spec.SchedulerName}]++
			}
		}
	}
	return waiting, refusedBy
}
