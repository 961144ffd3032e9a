// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"keelson/scheduler/framework"
)

// podUpdated reports whether an update of a waiting pod may make it schedulable. Of metadata only labels and generation
// count, of the status only resourceClaimStatuses.
func podUpdated(old, pod *corev1.Pod) bool {
	return old.Generation != pod.Generation || !maps.Equal(old.Labels, pod.Labels) ||
		!reflect.DeepEqual(&old.Spec, &pod.Spec) ||
		!resourceclaim.PodStatusEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses)
}

// unlock releases the lock and then calls Config.Entered.
func (q *Queue) unlock() {
	unreported := q.unreported
	q.unreported = nil
	q.mu.Unlock()
	for _, n := range unreported {
		q.cfg.Entered(n.pod, n.why, n.to, n.at)
	}
}

// recheckGatesLocked runs PreEnqueue again for the gated pods that the event may help. Only events of the kind Objects
// can do so: Set handles updates of the pod itself.
func (q *Queue) recheckGatesLocked(event *framework.Event) {
	if event.Kinds&framework.Objects == 0 {
		return
	}
	for it := range q.gated {
		about := func(h framework.ClusterEventWithHint) bool {
			return h.Match(event) && (it.group == nil || h.QueueingHintFn == nil || h.QueueingHintFn(it.Pod, event))
		}
		switch {
		case !slices.ContainsFunc(it.rules.Hints[it.gatedBy], about) || q.gated.gates(it):
		case it.group != nil:
			it.group.setReady(it)
			q.requeueGroupLocked(it.group, event.Label())
		default:
			q.activateLocked(it, event.Label())
		}
	}
}

// activateLocked moves an item to active.
func (q *Queue) activateLocked(it *Item, why string) {
	it.Since = time.Now()
	q.pushLocked(it, inActive, why)
	q.signalLocked()
}

// requeueLocked moves an unschedulable item to active, or to backoff while its backoff lasts. PreEnqueue may gate it
// instead.
func (q *Queue) requeueLocked(it *Item, why string) {
	if it.headOf != nil && !it.headOf.closeGates(q.gated) || it.headOf == nil && q.gated.gates(it) {
		it.where = nowhere
		return
	}
	if !it.due.After(time.Now()) {
		q.activateLocked(it, why)
		return
	}
	q.pushLocked(it, inBackoff, why)
	q.signalLocked()
}

// attemptFailed is the event label of pods that return to the queue after a failed attempt.
const attemptFailed = "ScheduleAttemptFailure"

// pushLocked adds an item to one of the heaps.
func (q *Queue) pushLocked(it *Item, w where, why string) {
	it.where = w
	if w == inUnschedulable {
		q.hintClasses.join(it)
	}
	q.reportLocked(it, why, places[w], time.Now())
	q.heaps.at(w).push(it)
}

func (q *Queue) reportLocked(it *Item, why string, to Place, at time.Time) {
	if it.headOf != nil {
		q.reportMembersLocked(it.headOf, why, to, at)
		return
	}
	q.unreported = append(q.unreported, entered{it.Pod, why, to, at})
}

// leaveLocked removes an item from its heap and its hint class.
func (q *Queue) leaveLocked(it *Item) {
	if h := q.heaps.at(it.where); h != nil {
		h.remove(it)
	}
	q.hintClasses.leave(it)
	it.where = nowhere
}

// countFailure counts a failed attempt and returns how many there were of its kind. Errors have a count of their own,
// which a refusal ends: a server that failed for a while does not make a pod wait longer for room.
func (it *Item) countFailure(byError bool) int {
	if byError {
		it.errors++
		return it.errors
	}
	it.errors = 0
	it.refusals++
	return it.refusals
}

// backoffOf is the backoff after n failed attempts.
func (c *Config) backoffOf(n int) time.Duration {
	d := c.InitialBackoff
	for range n - 1 {
		if d *= 2; d >= c.MaxBackoff {
			return c.MaxBackoff
		}
	}
	return min(d, c.MaxBackoff)
}

// signalLocked wakes the goroutines that wait in Pop.
func (q *Queue) signalLocked() {
	close(q.wake)
	q.wake = make(chan struct{})
}

// flushLocked moves the items whose backoff is over to active, and requeues those that have been unschedulable for
// Config.Flush.
func (q *Queue) flushLocked() {
	now := time.Now()
	for _, h := range []*heap{&q.heaps.backoff, &q.heaps.errorBackoff} {
		for it := h.first(); it != nil && !it.due.After(now); it = h.first() {
			h.pop()
			q.activateLocked(it, "BackoffComplete")
		}
	}
	h := &q.heaps.unschedulable
	for it := h.first(); it != nil && now.Sub(it.Since) >= q.cfg.Flush; it = h.first() {
		h.pop()
		q.hintClasses.leave(it)
		it.Flushed = true
		q.requeueLocked(it, "UnschedulableTimeout")
	}
}

// setTimerLocked sets the timer to the next time at which flushLocked has an item to move. It sets none if there is no
// such time.
func (q *Queue) setTimerLocked() {
	next := q.heaps.next(q.cfg.Flush)
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	if next.IsZero() || q.closed {
		return
	}
	q.timer = time.AfterFunc(time.Until(next), func() {
		q.mu.Lock()
		defer q.unlock()
		q.flushLocked()
		if q.closed {
			return
		}
		q.setTimerLocked()
	})
}

// Close stops the timer.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.unlock()
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
}

// Len counts the pods by place.
func (q *Queue) Len() (active, backoff, unschedulable, gated int) {
	q.mu.Lock()
	defer q.unlock()
	for _, it := range q.items {
		if it.where == nowhere {
			gated++
		}
	}
	return q.heaps.active.pods(), q.heaps.backoff.pods() + q.heaps.errorBackoff.pods(),
		q.heaps.unschedulable.pods(), gated
}

// Has reports whether the queue holds a pod, in flight included.
func (q *Queue) Has(uid types.UID) bool {
	q.mu.Lock()
	defer q.unlock()
	_, ok := q.items[uid]
	return ok
}
