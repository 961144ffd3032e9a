// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// Pod groups in the extender lane. A group with pods about which extenders are asked is handed over by the scheduling loop when its turn
// comes. While extenders answer, nothing of the group may show: so it is placed in a copy of the cluster first, where the extenders are
// asked about each pod in its turn. Then it is placed for real, in one go and with their answers.

// handover is the groups that wait for the extender lane, in the order of their turns.
type handover struct {
	mu    sync.Mutex
	heads []*queue.Item
	some  chan struct{} // has one when heads are not empty
}

func newHandover() *handover { return &handover{some: make(chan struct{}, 1)} }

func (h *handover) put(head *queue.Item) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heads = append(h.heads, head)
	h.signalLocked()
}

func (h *handover) signalLocked() {
	select {
	case h.some <- struct{}{}:
	default: // it knows
	}
}

// next waits for a group; nil: ctx is done.
func (h *handover) next(ctx context.Context) *queue.Item {
	select {
	case <-h.some:
	case <-ctx.Done():
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	head := h.heads[0]
	if h.heads = slices.Delete(h.heads, 0, 1); len(h.heads) > 0 {
		h.signalLocked()
	}
	return head
}

// askedAbout reports whether an extender is interested in a pod.
func (s *Scheduler) askedAbout(pod *corev1.Pod) bool {
	return s.queue.interested != nil && s.queue.interested(pod)
}

// ofExtenders reports whether an extender is interested in a pod of a group.
func (s *Scheduler) ofExtenders(head *queue.Item) bool {
	return slices.ContainsFunc(head.Members(), func(it *queue.Item) bool { return s.askedAbout(it.Pod.Pod) })
}

// loopGroupsOutside makes one attempt after another for groups of the extender lane.
func (s *Scheduler) loopGroupsOutside(ctx context.Context) {
	for {
		head := s.handed.next(ctx)
		if head == nil {
			return
		}
		s.inTurn(func() { s.tryGroupOutside(ctx, head) })
	}
}

// tryGroupOutside makes one attempt for a pod group of the extender lane. s.deciding is held when it is called, and let go of while
// extenders answer.
func (s *Scheduler) tryGroupOutside(ctx context.Context, head *queue.Item) {
	began := time.Now()
	for range roundsOutside {
		var asked *groupTrial
		a := s.newGroupAttempt(head)
		if a.settled() {
			return
		}
		a.by = a.outside
		if a.err = a.check(); a.err == nil {
			asked = a.copyOf(func(*state.PodInfo) bool { return false })
			a.err = asked.place(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		err := a.err
		if errors.Is(err, errMembersGone) {
			err = nil // the attempt below is without them
		}
		if a = s.newGroupAttempt(head); a.settled() { // its pods may have gone meanwhile
			return
		}
		a.by, a.err, a.began = a.outside, err, began
		if asked != nil {
			a.advice = asked.advice
		}
		if a.try(ctx) {
			return
		}
	}
	if a := s.newGroupAttempt(head); !a.settled() {
		a.err, a.began = errOutpaced, began
		a.refuse(ctx)
	}
}

// decide makes the attempt for one pod of the group, with what extenders said about it, if they were asked.
func (a *groupAttempt) decide(pod *state.PodInfo) *framework.Attempt {
	snapshot := a.s.cache.Refresh()
	if !a.s.askedAbout(pod.Pod) {
		return a.by.Decide(pod, snapshot, a.own)
	}
	advice := a.advice[pod.Pod.UID]
	if advice == nil { // no node fitted, or the others could not be placed
		at := a.by.Fit(pod, snapshot, a.own)
		a.outdated = at.Failed == nil && len(at.Feasible) > 0
		return at
	}
	at := a.by.DecideWith(advice, pod, snapshot, a.own)
	a.outdated = at.Chosen == nil && at.Failed == nil && advice.Outdated
	if !a.outdated {
		for _, why := range advice.Ignored {
			a.s.eventExtender(pod.Pod, why)
		}
	}
	return at
}

// takeBack undoes the placements, in reverse order.
func (a *groupAttempt) takeBack(ctx context.Context) {
	for _, t := range slices.Backward(a.members) {
		if t.round != nil {
			a.s.unreserve(ctx, t.round)
			t.would, t.round = t.round.node, nil
		}
	}
}

// errMembersGone says that pods of the group, or the group, were deleted while extenders answered: nobody may be preempted for them.
var errMembersGone = framework.Refuse("extenders", framework.Failed, "pods of the group were deleted while extenders were asked")

func (a *groupAttempt) membersGone() bool {
	return a.s.groups.Get(a.key).Object == nil || slices.ContainsFunc(a.members, func(m *member) bool { return !a.s.known(m.it.Pod) })
}

// decide is that of groupAttempt, in the copy. It lets go of s.deciding while extenders answer.
func (t *groupTrial) decide(ctx context.Context, pod *state.PodInfo) *framework.Attempt {
	if !t.a.s.askedAbout(pod.Pod) {
		return t.engine.Decide(pod, t.cache.Refresh(), nil)
	}
	at := t.engine.Fit(pod, t.cache.Refresh(), nil)
	if at.Failed != nil || len(at.Feasible) == 0 {
		return at
	}
	advice := t.a.s.advise(ctx, at)
	if at.Failed == nil && t.a.membersGone() {
		at.Failed = errMembersGone
	}
	if at.Failed != nil {
		return at
	}
	if t.advice == nil {
		t.advice = map[types.UID]*framework.Advice{}
	}
	t.advice[pod.Pod.UID] = advice
	return t.engine.DecideWith(advice, pod, t.cache.Refresh(), nil)
}
