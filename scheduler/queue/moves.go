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

// matters reports whether an update of a waiting pod may change the verdict: anything but bookkeeping, and of its status only the claims
// that were made for it.
func matters(old, pod *corev1.Pod) bool {
	return old.Generation != pod.Generation || !maps.Equal(old.Labels, pod.Labels) || !reflect.DeepEqual(&old.Spec, &pod.Spec) ||
		!resourceclaim.PodStatusEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses)
}

// unlock releases the lock and then tells who has become ready.
func (q *Queue) unlock() {
	news := q.news
	q.news = nil
	q.mu.Unlock()
	for _, n := range news {
		q.cfg.Entered(n.pod, n.why, n.to, n.at)
	}
}

// gatedLocked reports whether a gate keeps the pod out, and remembers which, and whether events may open it.
func (q *Queue) gatedLocked(it *Item) bool {
	it.gatedBy = ""
	delete(q.gated, it)
	for _, g := range it.rules.Gates {
		if g.PreEnqueue(it.Pod) == nil {
			continue
		}
		it.gatedBy = g.Name()
		if _, ok := it.rules.Hints[it.gatedBy]; ok {
			q.gated[it] = struct{}{}
		}
		return true
	}
	return false
}

// openLocked lets out the pods whose gate an event has opened. Besides the pod itself a gate can look at objects that its plugin asked for.
func (q *Queue) openLocked(e *framework.Event) {
	if e.Kinds&framework.Objects == 0 {
		return
	}
	for it := range q.gated {
		about := func(h framework.ClusterEventWithHint) bool {
			return h.About(e) && (it.of == nil || h.Worth == nil || h.Worth(it.Pod, e))
		}
		switch {
		case !slices.ContainsFunc(it.rules.Hints[it.gatedBy], about) || q.gatedLocked(it):
		case it.of != nil:
			q.readyLocked(it)
			q.joinLocked(it.of, e.Label())
		default:
			q.activateLocked(it, e.Label())
		}
	}
}

// activateLocked makes a pod ready.
func (q *Queue) activateLocked(it *Item, why string) {
	it.Since = time.Now()
	q.putLocked(it, inActive, why)
	q.signalLocked()
}

// againLocked puts a refused pod on its way back: through backoff if that is not over.
func (q *Queue) againLocked(it *Item, why string) {
	if it.leads != nil && !q.regateLocked(it.leads) || it.leads == nil && q.gatedLocked(it) {
		it.where = nowhere
		return
	}
	if !it.due.After(time.Now()) {
		q.activateLocked(it, why)
		return
	}
	q.putLocked(it, inBackoff, why)
	q.signalLocked()
}

// attemptFailed is why a pod waits after an attempt.
const attemptFailed = "ScheduleAttemptFailure"

// putLocked puts an item into one of the heaps.
func (q *Queue) putLocked(it *Item, w where, why string) {
	it.where = w
	if w == inUnschedulable {
		if len(q.refused.items) == 0 {
			q.waited = 0
		}
		q.waited |= it.interests
		q.joinAlikeLocked(it)
	}
	q.enterLocked(it, why, places[w], time.Now())
	q.heapOf(w).push(it)
}

func (q *Queue) enterLocked(it *Item, why string, to Place, at time.Time) {
	if it.leads != nil {
		q.tellLocked(it.leads, why, to, at)
		return
	}
	q.news = append(q.news, entered{it.Pod, why, to, at})
}

// leaveLocked takes an item out of where it waits.
func (q *Queue) leaveLocked(it *Item) {
	if h := q.heapOf(it.where); h != nil {
		h.remove(it)
	}
	q.leaveAlikeLocked(it)
	it.where = nowhere
}

func (q *Queue) heapOf(w where) *heap {
	switch w {
	case inActive:
		return &q.active
	case inBackoff:
		return &q.backoff
	case inErrors:
		return &q.errors
	case inUnschedulable:
		return &q.refused
	default:
		return nil
	}
}

func (q *Queue) backoffOf(it *Item) time.Duration {
	d := q.cfg.InitialBackoff
	for range it.Attempts - 1 {
		if d *= 2; d >= q.cfg.MaxBackoff {
			return q.cfg.MaxBackoff
		}
	}
	return min(d, q.cfg.MaxBackoff)
}

// signalLocked wakes whoever waits in Pop.
func (q *Queue) signalLocked() {
	close(q.wake)
	q.wake = make(chan struct{})
}

// expireLocked activates pods whose backoff is over, or who have been unschedulable for too long.
func (q *Queue) expireLocked() {
	now := time.Now()
	for _, h := range []*heap{&q.backoff, &q.errors} {
		for it := h.first(); it != nil && !it.due.After(now); it = h.first() {
			h.pop()
			q.activateLocked(it, "BackoffComplete")
		}
	}
	for it := q.refused.first(); it != nil && now.Sub(it.Since) >= q.cfg.Flush; it = q.refused.first() {
		q.refused.pop()
		q.leaveAlikeLocked(it)
		q.againLocked(it, "UnschedulableTimeout")
	}
}

// armLocked sets the timer to the next time something becomes ready by itself, if any.
func (q *Queue) armLocked() {
	var next time.Time
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if it := q.backoff.first(); it != nil {
		sooner(it.due)
	}
	if it := q.errors.first(); it != nil {
		sooner(it.due)
	}
	if it := q.refused.first(); it != nil {
		sooner(it.Since.Add(q.cfg.Flush))
	}
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
		q.expireLocked()
		if q.closed {
			return
		}
		q.armLocked()
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

// Len counts the pods by what they wait for.
func (q *Queue) Len() (active, backoff, unschedulable, gated int) {
	q.mu.Lock()
	defer q.unlock()
	for _, it := range q.items {
		if it.where == nowhere {
			gated++
		}
	}
	return q.countLocked(&q.active), q.countLocked(&q.backoff) + q.countLocked(&q.errors), q.countLocked(&q.refused), gated
}

// Has reports whether the queue knows a pod.
func (q *Queue) Has(uid types.UID) bool {
	q.mu.Lock()
	defer q.unlock()
	_, ok := q.items[uid]
	return ok
}
