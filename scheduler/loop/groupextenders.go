// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/lib/signal"
	"keelson/scheduler/core"
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
		rehearsal := s.newGroupAttempt(head)
		if rehearsal.finishIfEmpty() {
			return
		}
		rehearsal.engine = rehearsal.Profile.ExtenderEngine
		if rehearsal.Check(); rehearsal.Err == nil {
			dryRun := rehearsal.NewDryRun(func(*state.PodInfo) bool { return false })
			rehearsal.Fail(dryRun.Place(ctx))
		}
		if ctx.Err() != nil {
			return
		}
		a := s.newGroupAttempt(head)
		if a.finishIfEmpty() { // its pods may have been deleted
			return
		}
		a.engine = a.Profile.ExtenderEngine
		if !errors.Is(rehearsal.Err, errPodsDeleted) { // else this attempt is without the deleted pods
			a.Fail(rehearsal.Err)
		}
		a.start = start
		a.extenderResults = rehearsal.extenderResults
		if a.try(ctx) {
			return
		}
	}
	if a := s.newGroupAttempt(head); !a.finishIfEmpty() {
		a.Fail(errResultsOutdated)
		a.start = start
		a.handleFailure(ctx)
	}
}

// decide makes the attempt for one pod of the group, with the extenders' results of the dry run, if there are any.
func (a *groupAttempt) decide(pod *state.PodInfo) *framework.Attempt {
	snapshot := a.s.core.Cache.Refresh()
	if !a.s.extendersInterested(pod.Pod) {
		return a.engine.Decide(pod, snapshot, a.IsMember)
	}
	results := a.extenderResults[pod.Pod.UID]
	if results == nil { // in the dry run no node fitted, or it ended before this pod
		at := a.engine.FindFeasible(pod, snapshot, a.IsMember)
		a.outdated = at.Failed == nil && len(at.Feasible) > 0
		return at
	}
	at := a.engine.DecideWith(results, pod, snapshot, a.IsMember)
	a.outdated = at.Chosen == nil && at.Failed == nil && results.Outdated
	if !a.outdated {
		for _, why := range results.IgnoredErrors {
			a.s.reports.extenderIgnored(pod.Pod, why)
		}
	}
	return at
}

// errPodsDeleted means that pods of the group, or the group, were deleted during the calls of extenders: no pod may be
// preempted for them.
var errPodsDeleted = framework.NewStatus("extenders", framework.Failed,
	"pods of the group were deleted during the calls of extenders")

func (a *groupAttempt) anyDeleted() bool {
	return a.s.core.Groups.Get(a.Key).Object == nil || slices.ContainsFunc(a.members, func(m *member) bool {
		return !a.s.queue.Has(m.Pod.Pod.UID)
	})
}

// DecideIn implements core.Placer. It releases s.cycleLock during the calls of extenders.
func (a *groupAttempt) DecideIn(ctx context.Context, copied *core.DryRun, pod *state.PodInfo) *framework.Attempt {
	if !a.s.extendersInterested(pod.Pod) {
		return copied.Engine.Decide(pod, copied.Cache.Refresh(), nil)
	}
	at := copied.Engine.FindFeasible(pod, copied.Cache.Refresh(), nil)
	if at.Failed != nil || len(at.Feasible) == 0 {
		return at
	}
	results := a.s.callExtenders(ctx, at)
	if at.Failed == nil && a.anyDeleted() {
		at.Failed = errPodsDeleted
	}
	if at.Failed != nil {
		return at
	}
	if a.extenderResults == nil {
		a.extenderResults = map[types.UID]*framework.ExtenderResults{}
	}
	a.extenderResults[pod.Pod.UID] = results
	return copied.Engine.DecideWith(results, pod, copied.Cache.Refresh(), nil)
}
