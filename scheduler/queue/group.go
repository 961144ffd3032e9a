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

// A pod group waits as one. Its pods that are ready are inGroup and in no heap; its head, an item of no pod of its own, stands for them in
// the heaps, is popped with them, and is given back by Settle:
//
//	gated --gate opened--> inGroup --Pop of the head--> in flight --Assumed--> in binding
//	                          ^                              |                      |
//	                          +------------ Settle ----------+------ Retry ---------+
//
// What happens wakes the head if it may help any of its pods.

// members are the pods of a group that the queue knows.
type members struct {
	head  *Item
	pods  map[types.UID]*Item
	ready int // that are inGroup
	// joined tells that a pod has come while the head was in flight.
	joined bool
}

// Group is set on what stands for a pod group: its pods that were popped with it, the most important first.
func (it *Item) Group() []*Item { return it.riders }

// IsGroup tells whether it stands for a pod group.
func (it *Item) IsGroup() bool { return it.leads != nil }

// GroupOf tells whether a pod waits with others.
func (q *Queue) GroupOf(pod *corev1.Pod) bool {
	_, ok := state.GroupOf(pod)
	return ok && q.cfg.Groups
}

// groupLocked returns a pod's group, which it makes; nil: it has none.
func (q *Queue) groupLocked(pod *corev1.Pod) *members {
	key, ok := state.GroupOf(pod)
	if !ok || !q.cfg.Groups {
		return nil
	}
	m, ok := q.groups[key]
	if !ok {
		m = &members{pods: map[types.UID]*Item{}}
		m.head = &Item{QueuedPod: framework.QueuedPod{First: time.Now()}, home: q, rules: q.rulesOf(pod), leads: m, key: key}
		q.groups[key] = m
	}
	return m
}

// addLocked takes in a new pod of a group.
func (q *Queue) addLocked(m *members, it *Item) {
	it.of, m.pods[it.Pod.Pod.UID] = m, it
	if q.gatedLocked(it) {
		q.news = append(q.news, entered{it.Pod, "PodAdd", Gated, it.First})
		return
	}
	if to, ok := places[m.head.where]; ok {
		q.news = append(q.news, entered{it.Pod, "PodAdd", to, it.First})
	}
	q.readyLocked(it)
	q.letInLocked(m) // it may be the one that the others waited for
	q.joinLocked(m, "PodAdd")
}

func (q *Queue) readyLocked(it *Item) {
	it.where, it.Since = inGroup, time.Now()
	if it.of.ready++; it.of.ready == 1 || it.of.head.Pod == nil {
		it.of.head.Pod = it.Pod
	}
}

// letInLocked makes ready whom no gate holds any more.
func (q *Queue) letInLocked(m *members) {
	for _, it := range m.pods {
		if it.where == nowhere && !q.gatedLocked(it) {
			q.readyLocked(it)
		}
	}
}

// joinLocked has a group tried to which a pod has come.
func (q *Queue) joinLocked(m *members, why string) {
	switch m.head.where {
	case nowhere:
		q.activateLocked(m.head, why)
	case inUnschedulable:
		q.leaveLocked(m.head)
		q.againLocked(m.head, why)
	case inFlight:
		m.joined = true
	}
}

// changedLocked notes a new version of a pod that waits with its group.
func (q *Queue) changedLocked(it *Item, old, pod *corev1.Pod, info *state.PodInfo) {
	it.Pod = info
	head := it.of.head
	if head.where != inUnschedulable || !matters(old, pod) {
		return
	}
	if e := (framework.Event{Kinds: framework.Self, OldPod: old, NewPod: pod}); q.helpsLocked(head, &e) {
		q.leaveLocked(head)
		q.againLocked(head, e.Label())
	}
}

// lostLocked takes a pod out of its group.
func (q *Queue) lostLocked(it *Item) {
	m := it.of
	delete(m.pods, it.Pod.Pod.UID)
	if it.where == inGroup {
		it.where = nowhere
		m.ready--
		q.restLocked(m)
	}
	q.tidyLocked(m)
}

// restLocked takes the head out of the heaps when nobody waits with it any more.
func (q *Queue) restLocked(m *members) {
	if m.ready == 0 && m.head.where != inFlight {
		q.leaveLocked(m.head)
	}
}

func (q *Queue) tidyLocked(m *members) {
	if len(m.pods) == 0 && m.head.where != inFlight && q.groups[m.head.key] == m {
		delete(q.groups, m.head.key)
	}
}

// boardLocked has a group's ready pods fly with it.
func (q *Queue) boardLocked(head *Item) {
	m := head.leads
	m.joined, head.riders = false, head.riders[:0]
	for _, it := range m.pods {
		if it.where == inGroup {
			it.where, it.removed, it.popped = inFlight, false, head.popped
			it.Attempts++
			head.riders = append(head.riders, it)
		}
	}
	m.ready = 0
	q.flying += len(head.riders)
	slices.SortFunc(head.riders, func(a, b *Item) int {
		switch {
		case q.cfg.Less(&a.QueuedPod, &b.QueuedPod):
			return -1
		case q.cfg.Less(&b.QueuedPod, &a.QueuedPod):
			return 1
		}
		return cmp.Compare(a.Pod.Key, b.Pod.Key)
	})
}

// Settle gives back a group that was popped, with those of its pods that got no node; the others were Assumed, or are Done. After an error they
// are tried again once their backoff is over, else when something happens that may help one whom refusedBy refused.
func (q *Queue) Settle(head *Item, back []*Item, refusedBy []string, failed bool) {
	q.mu.Lock()
	defer q.unlock()
	m := head.leads
	changed := false
	for _, it := range back {
		had := it.Pod.Pod
		q.landLocked(it)
		if it.removed {
			continue
		}
		changed = changed || matters(had, it.Pod.Pod)
		if !q.gatedLocked(it) {
			q.readyLocked(it)
		}
	}
	missed := q.landLocked(head)
	head.refusedBy, head.interests = refusedBy, head.rules.interests(refusedBy)
	head.due = time.Now().Add(q.backoffOf(head))
	switch {
	case m.ready == 0:
		head.Attempts = 0
		q.tidyLocked(m)
	case failed:
		q.putLocked(head, inErrors, attemptFailed)
		q.armLocked()
	case m.joined || changed || head.recall || slices.ContainsFunc(missed, func(e framework.Event) bool { return q.helpsLocked(head, &e) }):
		q.againLocked(head, attemptFailed)
	default:
		head.Since = time.Now()
		q.putLocked(head, inUnschedulable, attemptFailed)
		q.armLocked()
	}
}

// returnLocked brings back a pod that lost the node it had been given: its group is tried again after a backoff.
func (q *Queue) returnLocked(it *Item) {
	m := it.of
	if q.gatedLocked(it) {
		return
	}
	q.readyLocked(it)
	due := time.Now().Add(q.backoffOf(it))
	switch m.head.where {
	case inFlight:
		m.joined = true
	case nowhere, inUnschedulable:
		q.leaveLocked(m.head)
		m.head.due = due
		q.putLocked(m.head, inErrors, attemptFailed)
		q.armLocked()
	}
}

// helpsGroupLocked asks whether an event may help any pod that waits with the head.
func (q *Queue) helpsGroupLocked(head *Item, e *framework.Event) bool {
	if e.Kinds == framework.PodDelete && e.OldPod != nil && head.leads.pods[e.OldPod.UID] != nil {
		return false // room that its own pods had for an attempt is no news
	}
	for _, it := range head.leads.pods {
		if it.where == inGroup && q.helpsPodLocked(it, head, e) {
			return true
		}
	}
	return false
}

// regateLocked takes out the pods that a gate holds again; it tells whether any is left.
func (q *Queue) regateLocked(m *members) bool {
	for _, it := range m.pods {
		if it.where == inGroup && q.gatedLocked(it) {
			it.where = nowhere
			m.ready--
		}
	}
	return m.ready > 0
}

// tellLocked tells where a group's pods wait now.
func (q *Queue) tellLocked(m *members, why string, to Place, at time.Time) {
	for _, it := range m.pods {
		if it.where == inGroup {
			q.news = append(q.news, entered{it.Pod, why, to, at})
		}
	}
}
