// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// The pods of a pod group wait together. A member that is not gated has the state inGroup and is in no heap. One item
// without a pod of its own, the group's head, represents all members in the heaps. Pop returns it with its members, and
// FinishGroup returns it to the queue:
//
//	gated --gate opened--> inGroup --Pop of the head--> in flight --Assumed--> in binding
//	                          ^                              |                      |
//	                          +--------- FinishGroup --------+------ Retry ---------+
//
// An event that may help any member moves the head.

// podGroup holds the queued pods of one pod group.
type podGroup struct {
	head  *Item
	pods  map[types.UID]*Item
	ready int // members that are inGroup
	// again: the group changed while its head was in flight, so another attempt follows, after the backoff.
	again bool
}

// Members returns the members that were popped with a group's head, in Less order. It is empty for other items.
func (it *Item) Members() []*Item { return it.popped }

// IsGroup reports whether the item is the head of a pod group.
func (it *Item) IsGroup() bool { return it.headOf != nil }

// GroupOf reports whether a pod waits with its pod group.
func (q *Queue) GroupOf(pod *corev1.Pod) bool {
	_, ok := state.GroupOf(pod)
	return ok && q.cfg.Groups
}

// groupLocked returns the group of a pod and creates it if it is new; nil: the pod has no group.
func (q *Queue) groupLocked(pod *corev1.Pod) *podGroup {
	key, ok := state.GroupOf(pod)
	if !ok || !q.cfg.Groups {
		return nil
	}
	m, ok := q.groups[key]
	if !ok {
		m = &podGroup{pods: map[types.UID]*Item{}}
		m.head = &Item{
			QueuedPod: framework.QueuedPod{First: time.Now()},
			queue:     q,
			rules:     q.cfg.rulesOf(pod),
			headOf:    m,
			key:       key,
		}
		q.groups[key] = m
	}
	return m
}

// addMemberLocked adds a new pod to its group.
func (q *Queue) addMemberLocked(m *podGroup, it *Item) {
	it.group = m
	m.pods[it.Pod.Pod.UID] = it
	if q.gated.gates(it) {
		q.unreported = append(q.unreported, entered{it.Pod, "PodAdd", Gated, it.First})
		return
	}
	if to, ok := places[m.head.where]; ok {
		q.unreported = append(q.unreported, entered{it.Pod, "PodAdd", to, it.First})
	}
	it.group.setReady(it)
	m.openGates(q.gated) // the new pod may open the gate of the others (minCount)
	q.requeueGroupLocked(m, "PodAdd")
}

// setReady marks a member that is not gated as ready to be popped with its group.
func (m *podGroup) setReady(it *Item) {
	it.where = inGroup
	it.Since = time.Now()
	if m.ready++; m.ready == 1 || m.head.Pod == nil {
		m.head.Pod = it.Pod
	}
}

// openGates marks the members as ready that PreEnqueue no longer gates.
func (m *podGroup) openGates(gated gatedItems) {
	for _, it := range m.pods {
		if it.where == nowhere && !gated.gates(it) {
			m.setReady(it)
		}
	}
}

// requeueGroupLocked makes the queue try a group again that has a new ready member.
func (q *Queue) requeueGroupLocked(m *podGroup, why string) {
	switch m.head.where {
	case nowhere:
		q.activateLocked(m.head, why)
	case inUnschedulable:
		q.leaveLocked(m.head)
		q.requeueLocked(m.head, why)
	case inFlight:
		m.again = true
	}
}

// updateMemberLocked stores a new version of a pod that waits with its group, and moves the group if the change may
// help it.
func (q *Queue) updateMemberLocked(it *Item, old, pod *corev1.Pod, info *state.PodInfo) {
	it.Pod = info
	head := it.group.head
	if head.where != inUnschedulable || !podUpdated(old, pod) {
		return
	}
	if e := (framework.Event{Kinds: framework.UnscheduledPodUpdate, OldPod: old, NewPod: pod}); head.helpedBy(&e) {
		q.leaveLocked(head)
		q.requeueLocked(head, e.Label())
	}
}

// removeMemberLocked removes a pod from its group.
func (q *Queue) removeMemberLocked(it *Item) {
	m := it.group
	delete(m.pods, it.Pod.Pod.UID)
	if it.where == inGroup {
		it.where = nowhere
		m.ready--
		q.dequeueIfEmptyLocked(m)
	}
	q.dropIfEmptyLocked(m)
}

// dequeueIfEmptyLocked removes the head from the heaps when no member is ready.
func (q *Queue) dequeueIfEmptyLocked(m *podGroup) {
	if m.ready == 0 && m.head.where != inFlight {
		q.leaveLocked(m.head)
	}
}

// dropIfEmptyLocked deletes a group without pods.
func (q *Queue) dropIfEmptyLocked(m *podGroup) {
	if len(m.pods) == 0 && m.head.where != inFlight && q.groups[m.head.key] == m {
		delete(q.groups, m.head.key)
	}
}

// popMembersLocked moves the ready members to inFlight, together with the head.
func (q *Queue) popMembersLocked(head *Item) {
	podGroup := head.headOf
	podGroup.again = false
	head.popped = head.popped[:0]
	for _, it := range podGroup.pods {
		if it.where == inGroup {
			it.where = inFlight
			it.deleted = false
			it.firstEvent = head.firstEvent
			it.Attempts++
			head.popped = append(head.popped, it)
		}
	}
	podGroup.ready = 0
	q.events.begin(len(head.popped))
	slices.SortFunc(head.popped, func(a, b *Item) int {
		switch {
		case q.cfg.Less(&a.QueuedPod, &b.QueuedPod):
			return -1
		case q.cfg.Less(&b.QueuedPod, &a.QueuedPod):
			return 1
		}
		return cmp.Compare(a.Pod.Key, b.Pod.Key)
	})
}

// FinishGroup returns a popped group, and its members without a node (back), to the queue. The caller has called
// Assumed or Done for the other members. failed: the attempt ended in an error, so the group is tried again after its
// backoff. Otherwise it is tried again after an event that the plugins in refusedBy wait for.
func (q *Queue) FinishGroup(head *Item, back []*Item, refusedBy []string, failed bool) {
	q.mu.Lock()
	defer q.unlock()
	podGroup := head.headOf
	changed := false
	for _, it := range back {
		had := it.Pod.Pod
		q.endFlightLocked(it)
		if it.deleted {
			continue
		}
		changed = changed || podUpdated(had, it.Pod.Pod)
		if !q.gated.gates(it) {
			it.group.setReady(it)
		}
	}
	missed := q.endFlightLocked(head)
	head.refusedBy = refusedBy
	head.interests = head.rules.interests(refusedBy)
	head.due = time.Now().Add(q.cfg.backoffOf(head.countFailure(failed)))
	switch {
	case podGroup.ready == 0:
		head.Attempts = 0
		head.refusals = 0
		head.errors = 0
		q.dropIfEmptyLocked(podGroup)
	case failed:
		q.pushLocked(head, inErrors, attemptFailed)
		q.setTimerLocked()
	case podGroup.again || changed || head.forced || podGroup.helpedByMissed(missed):
		q.requeueLocked(head, attemptFailed)
	default:
		head.Since = time.Now()
		q.pushLocked(head, inUnschedulable, attemptFailed)
		q.setTimerLocked()
	}
}

// maxMissedChecks is the maximum number of checks of a missed event for a member. FinishGroup does them under the lock.
// A check by a QueueingHint takes up to a microsecond.
const maxMissedChecks = 50_000

// helpedByMissed reports whether an event during the attempt may help the group. If there are too many checks to
// do, it may: another attempt costs less than to block all other users of the queue.
func (m *podGroup) helpedByMissed(missed []framework.Event) bool {
	checks := 0
	for i := range missed {
		if e := &missed[i]; e.Kinds&m.head.interests != 0 {
			if checks += len(m.pods); checks > maxMissedChecks || m.helpedBy(e) {
				return true
			}
		}
	}
	return false
}

// requeueMemberLocked returns a member whose binding cycle failed to its group. The group is tried again after the
// backoff.
func (q *Queue) requeueMemberLocked(it *Item) {
	podGroup := it.group
	if q.gated.gates(it) {
		return
	}
	it.group.setReady(it)
	due := time.Now().Add(q.cfg.backoffOf(it.countFailure(true)))
	switch podGroup.head.where {
	case inFlight:
		podGroup.again = true
	case nowhere, inUnschedulable:
		q.leaveLocked(podGroup.head)
		podGroup.head.due = due
		q.pushLocked(podGroup.head, inErrors, attemptFailed)
		q.setTimerLocked()
	}
}

// helpedBy reports whether an event may help any ready member.
func (m *podGroup) helpedBy(e *framework.Event) bool {
	if e.Kinds == framework.AssignedPodDelete && e.OldPod != nil && m.pods[e.OldPod.UID] != nil {
		return false // the event is about resources that a member itself held
	}
	for _, it := range m.pods {
		if it.where == inGroup && it.helpedAs(m.head, e) {
			return true
		}
	}
	return false
}

// closeGates runs PreEnqueue for the ready members again. It reports whether any is still ready.
func (m *podGroup) closeGates(gated gatedItems) bool {
	for _, it := range m.pods {
		if it.where == inGroup && gated.gates(it) {
			it.where = nowhere
			m.ready--
		}
	}
	return m.ready > 0
}

// reportMembersLocked reports the new place of all ready members.
func (q *Queue) reportMembersLocked(m *podGroup, why string, to Place, at time.Time) {
	for _, it := range m.pods {
		if it.where == inGroup {
			q.unreported = append(q.unreported, entered{it.Pod, why, to, at})
		}
	}
}
