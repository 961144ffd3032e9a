// SPDX-License-Identifier: Apache-2.0

package loop

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
)

// lanes are the scheduler's two queues, each with a loop of its own. The embedded one is for most pods. The extender
// lane is for pods in which an HTTP extender is interested, so that other pods do not wait for the extender. A pod
// stays in its lane until it leaves the queue. Pods of a group wait in the first queue; a group with pods for an
// extender is handed over when it is popped (groupextenders.go).
type lanes struct {
	*queue.Queue
	extenderLane *queue.Queue           // nil: there are no extenders
	interested   func(*corev1.Pod) bool // reports whether an extender is interested in a pod
}

func newLanes(c queue.Config, interested func(*corev1.Pod) bool) *lanes {
	l := &lanes{Queue: queue.New(c), interested: interested}
	if interested != nil {
		l.extenderLane = queue.New(c)
	}
	return l
}

// of returns the queue of a pod.
func (l *lanes) of(pod *corev1.Pod) *queue.Queue {
	if l.extenderLane == nil || l.Queue.Has(pod.UID) || l.GroupOf(pod) {
		return l.Queue
	}
	if l.extenderLane.Has(pod.UID) || l.interested(pod) {
		return l.extenderLane
	}
	return l.Queue
}

// each runs f for every queue.
func (l *lanes) each(f func(*queue.Queue)) {
	f(l.Queue)
	if l.extenderLane != nil {
		f(l.extenderLane)
	}
}

func (l *lanes) Set(pod *corev1.Pod)       { l.of(pod).Set(pod) }
func (l *lanes) Delete(uid types.UID)      { l.each(func(q *queue.Queue) { q.Delete(uid) }) }
func (l *lanes) OnEvent(e framework.Event) { l.each(func(q *queue.Queue) { q.OnEvent(e) }) }
func (l *lanes) Activate(uid types.UID)    { l.each(func(q *queue.Queue) { q.Activate(uid) }) }
func (l *lanes) Close()                    { l.each((*queue.Queue).Close) }
func (l *lanes) Has(uid types.UID) bool {
	return l.Queue.Has(uid) || l.extenderLane != nil && l.extenderLane.Has(uid)
}

// A pod goes back to the lane that it came from.
func (l *lanes) Assumed(it *queue.Item) { it.Queue().Assumed(it) }
func (l *lanes) Done(it *queue.Item)    { it.Queue().Done(it) }
func (l *lanes) Retry(it *queue.Item)   { it.Queue().Retry(it) }
func (l *lanes) Unschedulable(it *queue.Item, refusedBy []string) {
	it.Queue().Unschedulable(it, refusedBy)
}

// Counts counts the pods of all lanes.
func (l *lanes) Counts() (waiting map[queue.Place]int, refusedBy map[[2]string]int) {
	waiting, refusedBy = l.Queue.Counts()
	if l.extenderLane == nil {
		return waiting, refusedBy
	}
	w, r := l.extenderLane.Counts()
	for place, n := range w {
		waiting[place] += n
	}
	for of, n := range r {
		refusedBy[of] += n
	}
	return waiting, refusedBy
}
