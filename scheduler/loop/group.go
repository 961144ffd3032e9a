// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"slices"
	"time"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/scheduler/core"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// groupAttempt is one attempt to schedule the pods of a pod group together. core.Group places them. groupAttempt waits
// on Permit, starts the binding cycles, and reports.
type groupAttempt struct {
	*core.Group // nil: there are no members
	s           *Scheduler
	profile     *profile
	head        *queue.Item
	members     []*member
	start       time.Time
	engine      *core.Engine // of the lane
	// extenderResults are those of the dry run, by pod. outdated: the nodes that they allow are full, so the extenders
	// must be called again.
	extenderResults map[types.UID]*framework.ExtenderResults
	outdated        bool
}

// member is the attempt for one pod of the group.
type member struct {
	*core.Member
	it       *queue.Item
	binding  *bindingCycle // while the pod has a Placement
	waits    map[string]time.Duration
	decision *decisions.Attempt
	start    time.Time
	took     time.Duration
	reported string // the message of the event and the condition
}

// scheduleGroup makes one attempt for a pod group: its pods are placed one after another, and bound if enough of them
// have nodes.
func (s *Scheduler) scheduleGroup(ctx context.Context, head *queue.Item) {
	if a := s.newGroupAttempt(head); !a.finishIfEmpty() {
		a.engine = a.Profile.Engine
		a.try(ctx)
	}
}

func (s *Scheduler) newGroupAttempt(head *queue.Item) *groupAttempt {
	a := &groupAttempt{s: s, head: head, start: time.Now()}
	var pods []*state.PodInfo
	for _, it := range head.Members() {
		pod := it.Pod.Pod
		node, _ := s.core.Cache.Where(pod.UID)
		if node != "" || pod.DeletionTimestamp != nil || s.profile(pod) == nil || !s.queue.Has(it.Pod.Pod.UID) {
			s.queue.Done(it)
			continue
		}
		a.members = append(a.members, &member{it: it})
		pods = append(pods, it.Pod)
	}
	if len(pods) == 0 {
		return a
	}
	a.profile = s.profile(pods[0].Pod)
	a.Group = s.core.NewGroup(pods, a)
	for i, m := range a.members {
		m.Member = a.Members[i]
	}
	return a
}

// finishIfEmpty returns the group to the queue if there is nothing to try.
func (a *groupAttempt) finishIfEmpty() bool {
	switch {
	case len(a.members) == 0:
		a.s.queue.FinishGroup(a.head, nil, nil, false)
		return true
	case a.State.Object == nil: // it was deleted: its pods wait for another one of this name
		a.s.queue.FinishGroup(a.head, a.items(), []string{plugins.GangName}, false)
		return true
	}
	return false
}

// try makes the attempt. It returns false if the extenders must be called again; no pod is placed then.
func (a *groupAttempt) try(ctx context.Context) bool {
	defer a.s.core.Cache.EndTentative()
	if again := a.s.core.TryGroup(ctx, a.Group); again {
		return false
	}
	if a.Err == nil && a.Status == nil {
		a.permit(ctx)
	}
	if a.Err == nil && a.Status == nil {
		a.bind(ctx)
		return true
	}
	a.handleFailure(ctx)
	return true
}

func (a *groupAttempt) items() []*queue.Item {
	out := make([]*queue.Item, len(a.members))
	for i, t := range a.members {
		out[i] = t.it
	}
	return out
}

// Decide implements core.Placer.
func (a *groupAttempt) Decide(_ context.Context, at int) *framework.Attempt {
	m := a.members[at]
	m.start = time.Now()
	attempt := a.decide(m.Pod)
	if a.outdated {
		return nil
	}
	a.profile.measureDecision(attempt, m.start)
	if attempt.Failed == nil && a.s.cfg.Marks != nil {
		m.decision = explain.Decision(attempt, m.it.Attempts, m.start.Sub(m.it.Since))
		m.Fixes = m.decision.Fixes
	}
	m.took = time.Since(m.start)
	return attempt
}

// Assume implements core.Placer.
func (a *groupAttempt) Assume(ctx context.Context, at int, p *core.Placement, node *state.NodeInfo) error {
	m := a.members[at]
	m.binding = &bindingCycle{Placement: p, profile: a.profile, it: m.it, start: a.start}
	err := a.s.core.Assume(ctx, p, node, m.binding.timeReserve)
	m.took = time.Since(m.start)
	return err
}

// permit runs the Permit plugins, before any pod is bound. Pods that were deleted meanwhile are ignored.
func (a *groupAttempt) permit(ctx context.Context) {
	for _, m := range a.members {
		if m.Placement == nil {
			continue
		}
		if node, _ := a.s.core.Cache.Where(m.Pod.Pod.UID); node == "" || !a.s.queue.Has(m.Pod.Pod.UID) {
			a.Drop(ctx, m.Member, nil)
		}
	}
	if a.Recount(); a.Status != nil {
		return
	}
	for _, m := range a.members {
		if m.Placement == nil {
			continue
		}
		err := m.binding.timed("Permit", &m.binding.durations.Permit, func() (err error) {
			m.waits, err = m.binding.Permit(ctx)
			return err
		})
		if err == nil {
			continue
		}
		if a.Drop(ctx, m.Member, err); a.Err != nil {
			return
		}
	}
	a.Recount()
}

// bind starts the binding cycles of the pods that have nodes, and returns the others to the queue.
func (a *groupAttempt) bind(ctx context.Context) {
	scheduler := a.s
	var requeue []*queue.Item
	var refused []string
	for _, member := range a.members {
		if member.Placement == nil {
			a.emitMark(member)
			requeue = append(requeue, member.it)
			refused = union(refused, member.RefusedBy)
			a.report(ctx, member, reasonUnschedulable, member.Message)
			continue
		}
		a.emitMark(member)
		scheduler.queue.Assumed(member.it)
		scheduler.nominations.clear(member.Pod.Pod)
		var waitingPod *framework.WaitingPod
		if member.waits != nil {
			waitingPod = scheduler.waitingPods.Hold(member.Pod, member.Placement.Node, member.waits)
		}
		scheduler.startBinding(ctx, member.binding, waitingPod)
	}
	a.writeCondition(ctx, metav1.ConditionTrue, "Scheduled", "")
	scheduler.queue.FinishGroup(a.head, requeue, union(refused, []string{plugins.GangName}), false)
}

// handleFailure undoes the placements, runs preemption if the group is unschedulable, and returns the group to the
// queue.
func (a *groupAttempt) handleFailure(ctx context.Context) {
	scheduler := a.s
	a.Forget(ctx)
	scheduler.core.Cache.EndTentative() // before other attempts
	reason := reasonUnschedulable
	condition := schedulingv1beta1.PodGroupReasonUnschedulable
	if a.Err != nil {
		reason = reasonError
		condition = schedulingv1beta1.PodGroupReasonSchedulerError
		scheduler.log.Warn("scheduling attempt failed", "podgroup", a.Key, "attempt", a.head.Attempts, "err", a.Err)
	} else {
		a.runPostFilter(ctx)
	}
	refused := []string{plugins.GangName}
	for _, t := range a.members {
		scheduler.nominations.set(t.Pod, a.Nominated[t.Pod.Pod.UID])
		text := a.ReasonFor(t.Member)
		t.reported = text
		if t.decision != nil && text != "" {
			t.decision.Message = text
		}
		a.emitMark(t)
		refused = union(refused, t.RefusedBy)
		a.report(ctx, t, reason, text)
	}
	a.writeCondition(ctx, metav1.ConditionFalse, condition, a.Reason())
	scheduler.queue.FinishGroup(a.head, a.items(), refused, a.Err != nil)
}

// runPostFilter runs preemption for the whole group. The caller has undone the placements of the attempt.
func (a *groupAttempt) runPostFilter(ctx context.Context) {
	if a.State.Object == nil || !slices.ContainsFunc(a.Profile.PostFilter, postFiltersGroups) {
		return
	}
	at := a.Preemption(ctx)
	_ = a.profile.measure("PostFilter", func() error {
		for _, p := range a.Profile.PostFilter {
			if !postFiltersGroups(p) {
				continue
			}
			if p.Name == preempt.Name {
				a.profile.metrics.preemptions.Inc()
			}
			a.Nominate(p.GroupPostFilter(ctx, at))
			if len(a.Nominated) > 0 {
				return nil
			}
		}
		return errNoNomination
	})
}

func postFiltersGroups(p framework.Weighted) bool { return p.GroupPostFilter != nil }

// report reports why a pod has no node, with an event and in the pod's status.
func (a *groupAttempt) report(ctx context.Context, t *member, reason, message string) {
	result := unschedulable
	if reason == reasonError {
		result = failed
	}
	a.profile.measureAttempt(result, a.start)
	a.s.writers.enqueue(ctx, a.s.reports.noNode(t.Pod.Pod, reason, message, a.Nominated[t.Pod.Pod.UID]))
}

// emitMark emits the mark of the attempt for one pod.
func (a *groupAttempt) emitMark(t *member) {
	if a.s.cfg.Marks == nil {
		return
	}
	decision := t.decision
	if decision == nil { // it was not tried: the group was refused before
		decision = explain.New(t.it.Attempts, a.start.Sub(t.it.Since))
		decision.Message = t.reported
		t.start = a.start
	}
	decision.PodGroup = a.Summary(t.Member)
	if t.Placement == nil {
		decision.Node = ""
		decision.Scores = nil
		decision.Tied = 0
		refusedBy := union(t.RefusedBy, []string{plugins.GangName})
		decision.WaitsFor = waitsFor(a.s.queue.WaitsFor(t.Pod.Pod, refusedBy), false)
	}
	a.s.cfg.Marks.Emit(event.Event{
		Step:      event.StepDecision,
		Component: "scheduler",
		At:        t.start,
		Took:      t.took,
		Subject:   subject(t.Pod.Pod),
		Detail:    decision,
	})
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
