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

	"keelson/lib/signal"
	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// Pod groups in the extender lane. The scheduling loop hands a group over that has pods in which extenders are
// interested. While extenders are called, no pod of the group may occupy a node. So the group is first placed in a copy
// of the cluster (a dry run), with calls of the extenders for one pod after the other. Then it is placed in the
// cluster, without a pause and with the extenders' results.

// groupQueue holds the groups that wait for the extender lane, first in first out.
type groupQueue struct {
	mu    sync.Mutex
	heads []*queue.Item
	ready signal.Signal // heads is not empty
}

func newGroupQueue() *groupQueue { return &groupQueue{ready: signal.New()} }

func (h *groupQueue) add(head *queue.Item) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heads = append(h.heads, head)
	h.ready.Notify()
}

// pop waits for a group; nil: ctx is done.
func (h *groupQueue) pop(ctx context.Context) *queue.Item {
	if h.ready.Wait(ctx) != nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	head := h.heads[0]
	if h.heads = slices.Delete(h.heads, 0, 1); len(h.heads) > 0 {
		h.ready.Notify()
	}
	return head
}

// extendersInterested reports whether an extender is interested in a pod.
func (s *Scheduler) extendersInterested(pod *corev1.Pod) bool {
	return s.queue.interested != nil && s.queue.interested(pod)
}

// extendersInterestedInGroup reports whether an extender is interested in a pod of a group.
func (s *Scheduler) extendersInterestedInGroup(head *queue.Item) bool {
	return slices.ContainsFunc(head.Members(), func(it *queue.Item) bool { return s.extendersInterested(it.Pod.Pod) })
}

// extenderGroupLoop makes one attempt after another for groups of the extender lane.
func (s *Scheduler) extenderGroupLoop(ctx context.Context) {
	for {
		head := s.extenderGroups.pop(ctx)
		if head == nil {
			return
		}
		s.inExtenderLane(func() { s.scheduleGroupWithExtenders(ctx, head) })
	}
}

// scheduleGroupWithExtenders makes one attempt for a pod group of the extender lane. The caller holds s.cycleLock; it
// is released during the calls of extenders.
func (s *Scheduler) scheduleGroupWithExtenders(ctx context.Context, head *queue.Item) {
	start := time.Now()
	for range maxExtenderRounds {
		var dryRun *groupDryRun
		groupAttempt := s.newGroupAttempt(head)
		if groupAttempt.finishIfEmpty() {
			return
		}
		groupAttempt.laneEngine = groupAttempt.extenderEngine
		if groupAttempt.err = groupAttempt.check(); groupAttempt.err == nil {
			dryRun = groupAttempt.newDryRun(func(*state.PodInfo) bool { return false })
			groupAttempt.err = dryRun.place(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		err := groupAttempt.err
		if errors.Is(err, errPodsDeleted) {
			err = nil // the attempt below is without the deleted pods
		}
		if groupAttempt = s.newGroupAttempt(head); groupAttempt.finishIfEmpty() { // its pods may have been deleted
			return
		}
		groupAttempt.laneEngine = groupAttempt.extenderEngine
		groupAttempt.err = err
		groupAttempt.start = start
		if dryRun != nil {
			groupAttempt.extenderResults = dryRun.extenderResults
		}
		if groupAttempt.try(ctx) {
			return
		}
	}
	if a := s.newGroupAttempt(head); !a.finishIfEmpty() {
		a.err = errResultsOutdated
		a.start = start
		a.handleFailure(ctx)
	}
}

// decide makes the attempt for one pod of the group, with the extenders' results of the dry run, if there are any.
func (a *groupAttempt) decide(pod *state.PodInfo) *framework.Attempt {
	snapshot := a.s.cache.Refresh()
	if !a.s.extendersInterested(pod.Pod) {
		return a.laneEngine.Decide(pod, snapshot, a.isMember)
	}
	results := a.extenderResults[pod.Pod.UID]
	if results == nil { // in the dry run no node fitted, or it ended before this pod
		at := a.laneEngine.FindFeasible(pod, snapshot, a.isMember)
		a.outdated = at.Failed == nil && len(at.Feasible) > 0
		return at
	}
	at := a.laneEngine.DecideWith(results, pod, snapshot, a.isMember)
	a.outdated = at.Chosen == nil && at.Failed == nil && results.Outdated
	if !a.outdated {
		for _, why := range results.IgnoredErrors {
			a.s.eventExtender(pod.Pod, why)
		}
	}
	return at
}

// unreserveAll undoes the placements, in reverse order.
func (a *groupAttempt) unreserveAll(ctx context.Context) {
	for _, t := range slices.Backward(a.members) {
		if t.binding != nil {
			a.s.unreserve(ctx, t.binding)
			t.chosenNode = t.binding.node
			t.binding = nil
		}
	}
}

// errPodsDeleted means that pods of the group, or the group, were deleted during the calls of extenders: no pod may be
// preempted for them.
var errPodsDeleted = framework.NewStatus("extenders", framework.Failed,
	"pods of the group were deleted during the calls of extenders")

func (a *groupAttempt) anyDeleted() bool {
	return a.s.groups.Get(a.key).Object == nil || slices.ContainsFunc(a.members, func(m *member) bool {
		return !a.s.known(m.it.Pod)
	})
}

// decide makes the attempt for one pod of the group in the copy. It releases s.cycleLock during the calls of extenders.
func (t *groupDryRun) decide(ctx context.Context, pod *state.PodInfo) *framework.Attempt {
	if !t.a.s.extendersInterested(pod.Pod) {
		return t.engine.Decide(pod, t.cache.Refresh(), nil)
	}
	at := t.engine.FindFeasible(pod, t.cache.Refresh(), nil)
	if at.Failed != nil || len(at.Feasible) == 0 {
		return at
	}
	results := t.a.s.callExtenders(ctx, at)
	if at.Failed == nil && t.a.anyDeleted() {
		at.Failed = errPodsDeleted
	}
	if at.Failed != nil {
		return at
	}
	if t.extenderResults == nil {
		t.extenderResults = map[types.UID]*framework.ExtenderResults{}
	}
	t.extenderResults[pod.Pod.UID] = results
	return t.engine.DecideWith(results, pod, t.cache.Refresh(), nil)
}
