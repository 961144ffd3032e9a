// SPDX-License-Identifier: Apache-2.0

package queue

// Place is a part of the queue, named as in kube-scheduler's metrics.
type Place string

// The places. A pod whose attempt ended in an error counts as Backoff, too.
const (
	Active        Place = "active"
	Backoff       Place = "backoff"
	Unschedulable Place = "unschedulable"
	Gated         Place = "gated"
)

// places maps the heaps to the places that metrics report.
var places = map[where]Place{
	inActive:        Active,
	inBackoff:       Backoff,
	inErrors:        Backoff,
	inUnschedulable: Unschedulable,
}

// Counts returns the number of waiting pods by place, and the number of pods that a plugin has refused or gated, by
// plugin name and scheduler name.
func (q *Queue) Counts() (waiting map[Place]int, refusedBy map[[2]string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting = map[Place]int{
		Active:        q.heaps.active.pods(),
		Backoff:       q.heaps.backoff.pods() + q.heaps.errorBackoff.pods(),
		Unschedulable: q.heaps.unschedulable.pods(),
		Gated:         0,
	}
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
			if by := it.group.head; by.where == inUnschedulable || by.where == inBackoff {
				count(it, by.refusedBy)
			}
		case inUnschedulable, inBackoff:
			count(it, it.refusedBy)
		}
	}
	return waiting, refusedBy
}
