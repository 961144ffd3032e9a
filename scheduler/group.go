// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/event"
	"keelson/scheduler/core"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// groupAttempt is one attempt to schedule the pods of a pod group together. During the attempt the placed pods count on
// their nodes. They are removed again if the group as a whole does not get enough nodes. No pod is bound before that is
// decided.
type groupAttempt struct {
	*profile
	s          *Scheduler
	head       *queue.Item
	key        state.GroupKey
	group      state.PodGroup
	start      time.Time
	laneEngine *core.Engine // of the lane
	// decideFunc and dryRunFunc make the attempt for one pod, in the cluster and in a copy of it.
	decideFunc func(*state.PodInfo) *framework.Attempt
	dryRunFunc func(*groupDryRun, context.Context, *state.PodInfo) *framework.Attempt

	members   []*member
	scheduled int // pods of the group that have nodes, including those of this attempt
	remaining int // pods that have not been tried yet
	// status is why the group cannot be placed; nil: it can. err is an error of the attempt.
	status *framework.Status
	err    error
	// nominated are the nominated nodes, by pod.
	nominated map[types.UID]string
	message   string // of preemption
	// extenderResults are those of the dry run, by pod. outdated: the nodes that they allow are full, so the extenders
	// must be called again.
	extenderResults map[types.UID]*framework.ExtenderResults
	outdated        bool
}

// member is the attempt for one pod of the group.
type member struct {
	it         *queue.Item
	binding    *bindingCycle // nil: the pod has no node
	waits      map[string]time.Duration
	decision   *event.Decision
	start      time.Time
	took       time.Duration
	message    string // why the pod has no node; empty: it was not tried
	chosenNode string // the node of an undone placement
	reported   string // the message of the event and the condition
	refusedBy  []string
}

// scheduleGroup makes one attempt for a pod group: its pods are placed one after another, and bound if enough of them
// have nodes.
func (s *Scheduler) scheduleGroup(ctx context.Context, head *queue.Item) {
	if a := s.newGroupAttempt(head); !a.finishIfEmpty() {
		a.laneEngine = a.engine
		a.try(ctx)
	}
}

// finishIfEmpty returns the group to the queue if there is nothing to try.
func (a *groupAttempt) finishIfEmpty() bool {
	switch {
	case len(a.members) == 0:
		a.s.queue.FinishGroup(a.head, nil, nil, false)
		return true
	case a.group.Object == nil: // it was deleted: its pods wait for another one of this name
		a.s.queue.FinishGroup(a.head, a.items(), []string{plugins.GangName}, false)
		return true
	}
	return false
}

// try makes the attempt. It returns false if the extenders must be called again; no pod is placed then.
func (a *groupAttempt) try(ctx context.Context) bool {
	defer a.s.cache.EndTentative()
	if a.err == nil {
		a.err = a.check()
	}
	if a.err == nil {
		a.place(ctx)
	}
	if a.outdated {
		a.unreserveAll(ctx)
		return false
	}
	if a.err == nil && a.status == nil {
		a.permit(ctx)
	}
	if a.err == nil && a.status == nil {
		a.bind(ctx)
		return true
	}
	a.handleFailure(ctx)
	return true
}

func (s *Scheduler) newGroupAttempt(head *queue.Item) *groupAttempt {
	a := &groupAttempt{
		s:          s,
		head:       head,
		start:      time.Now(),
		dryRunFunc: (*groupDryRun).decide,
	}
	a.decideFunc = a.decide
	for _, it := range head.Members() {
		pod := it.Pod.Pod
		if node, _ := s.cache.Where(pod.UID); node != "" || pod.DeletionTimestamp != nil || s.profile(pod) == nil ||
			!s.known(it.Pod) {
			s.queue.Done(it)
			continue
		}
		a.members = append(a.members, &member{it: it})
	}
	if len(a.members) > 0 {
		pod := a.members[0].it.Pod.Pod
		a.profile = s.profile(pod)
		a.key, _ = state.GroupOf(pod)
		a.group = s.groups.Get(a.key)
	}
	a.scheduled = a.group.Scheduled
	a.remaining = len(a.members)
	return a
}

func (a *groupAttempt) items() []*queue.Item {
	out := make([]*queue.Item, len(a.members))
	for i, t := range a.members {
		out[i] = t.it
	}
	return out
}

// check requires that the pods of a group agree in the fields that decide for all.
func (a *groupAttempt) check() error {
	first := a.members[0].it.Pod.Pod
	for _, t := range a.members {
		p := t.it.Pod
		if p.Pod.Spec.SchedulerName != first.Spec.SchedulerName {
			return fmt.Errorf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q "+
				"and %q", p.Pod.Spec.SchedulerName, first.Spec.SchedulerName)
		}
		if want := a.group.Priority(); p.Priority != want {
			return fmt.Errorf("all pods in a single pod group should have the same priority as the pod group's "+
				"priority, got %d and %d", p.Priority, want)
		}
		if is, want := preemptionPolicy(p.Pod), preemptionPolicy(first); is != want {
			return fmt.Errorf("all pods in a single pod group should have the same preemption policy, got %v and %v",
				is, want)
		}
	}
	return nil
}

func preemptionPolicy(p *corev1.Pod) corev1.PreemptionPolicy {
	if p.Spec.PreemptionPolicy == nil {
		return corev1.PreemptLowerPriority
	}
	return *p.Spec.PreemptionPolicy
}

// feasible reports whether the attempt should continue: enough pods of the group have nodes, or may still get them.
func (a *groupAttempt) feasible() (proceed bool) {
	a.status = nil
	for _, p := range a.Plugins {
		if p.PlacementFeasible == nil {
			continue
		}
		st, wait := p.PlacementFeasible(&a.group, a.scheduled, a.remaining)
		if st != nil {
			a.status = st
			return wait
		}
	}
	return true
}

// place gives nodes to as many pods as it can, until too few are left.
func (a *groupAttempt) place(ctx context.Context) {
	proceed := a.feasible()
	placed := 0
	for _, t := range a.members {
		if !proceed {
			break
		}
		if a.err = a.placeOne(ctx, t); a.err != nil || a.outdated {
			return
		}
		a.remaining--
		if t.binding != nil {
			a.scheduled++
			placed++
		}
		proceed = a.feasible()
	}
	if a.status == nil && placed == 0 {
		a.status = errGroup
	}
}

// placeOne finds a node for one pod and counts the pod there.
func (a *groupAttempt) placeOne(ctx context.Context, t *member) error {
	scheduler := a.s
	pod := t.it.Pod
	t.start = time.Now()
	at := a.decideFunc(pod)
	if a.outdated {
		return nil
	}
	a.measureDecision(at, t.start)
	defer func() { t.took = time.Since(t.start) }()
	if at.Failed != nil {
		return errors.New(at.Message())
	}
	if at.Chosen == nil {
		t.message = at.Message()
		t.refusedBy = at.RefusedBy()
	}
	if scheduler.cfg.Marks != nil {
		t.decision = explain.Decision(at, t.it.Attempts, t.start.Sub(t.it.Since))
	}
	if at.Chosen == nil {
		return nil
	}
	c := &bindingCycle{
		profile: a.profile,
		it:      t.it,
		pod:     pod,
		state:   at.Cycle,
		node:    at.Chosen.Name,
		start:   a.start,
	}
	scheduler.cache.AssumeTentatively(pod.Pod.UID)
	switch err := scheduler.runReserve(ctx, c, at.Chosen); {
	case err == nil:
		t.binding = c
	case rejection(err) != nil:
		t.message = err.Error()
		t.refusedBy = []string{rejection(err).Plugin}
	default:
		return fmt.Errorf("failed to schedule other pod from a pod group: %w", err)
	}
	return nil
}

// isMember reports whether a pod belongs to the group. Nominations of its own pods reserve nothing, since they are
// being placed.
func (a *groupAttempt) isMember(p *state.PodInfo) bool {
	key, ok := state.GroupOf(p.Pod)
	return ok && key == a.key
}

// permit runs the Permit plugins, before any pod is bound. Pods that were deleted meanwhile are ignored.
func (a *groupAttempt) permit(ctx context.Context) {
	for _, t := range a.members {
		if t.binding == nil {
			continue
		}
		if node, _ := a.s.cache.Where(t.it.Pod.Pod.UID); node == "" || !a.s.known(t.it.Pod) {
			a.s.unreserve(ctx, t.binding)
			t.binding = nil
		}
	}
	if a.recount(); a.status != nil {
		return
	}
	for _, member := range a.members {
		if member.binding == nil {
			continue
		}
		err := member.binding.timed("Permit", &member.binding.durations.Permit, func() (err error) {
			member.waits, err = a.s.runPermit(ctx, member.binding)
			return err
		})
		if err == nil {
			continue
		}
		a.s.unreserve(ctx, member.binding)
		member.message = err.Error()
		member.binding = nil
		if st := rejection(err); st != nil {
			member.refusedBy = []string{st.Plugin}
		} else {
			a.err = err
			return
		}
	}
	a.recount()
}

// recount counts again how many pods of the group have nodes.
func (a *groupAttempt) recount() {
	a.group = a.s.groups.Get(a.key)
	a.scheduled = a.group.Scheduled
	if a.group.Object == nil {
		a.status = errGroupGone
		return
	}
	if a.feasible(); a.status == nil && !slices.ContainsFunc(a.members, func(t *member) bool {
		return t.binding != nil
	}) {
		a.status = errGroup
	}
}

// errGroup is the status of a group of which no pod could be placed, errGroupGone that of a group that was deleted
// during the attempt.
var (
	errGroup     = framework.NewStatus(plugins.GangName, framework.Unschedulable, "pod group is unschedulable")
	errGroupGone = framework.NewStatus(plugins.GangName, framework.Unschedulable, "the pod group is gone")
)

// bind starts the binding cycles of the pods that have nodes, and returns the others to the queue.
func (a *groupAttempt) bind(ctx context.Context) {
	scheduler := a.s
	var requeue []*queue.Item
	var refused []string
	for _, member := range a.members {
		if member.binding == nil {
			_ = a.emitMark(member) // no binding depends on it
			requeue = append(requeue, member.it)
			refused = union(refused, member.refusedBy)
			a.report(ctx, member, reasonUnschedulable, member.message)
			continue
		}
		if err := a.emitMark(member); err != nil {
			scheduler.unreserve(ctx, member.binding)
			scheduler.queue.Assumed(member.it) // it returns to the queue on its own
			scheduler.enqueueWrite(ctx, scheduler.handleError(ctx, member.it, member.it.Pod, err,
				member.it.Pod.Pod.Status.NominatedNodeName, a.start))
			continue
		}
		scheduler.queue.Assumed(member.it)
		scheduler.clearNomination(member.it.Pod.Pod)
		var waitingPod *framework.WaitingPod
		if member.waits != nil {
			waitingPod = scheduler.waitingPods.Hold(member.binding.pod, member.binding.node, member.waits)
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
	a.unreserveAll(ctx)
	scheduler.cache.EndTentative() // before other attempts
	reason := reasonUnschedulable
	condition := schedulingv1beta1.PodGroupReasonUnschedulable
	if a.err != nil {
		reason = reasonError
		condition = schedulingv1beta1.PodGroupReasonSchedulerError
		scheduler.log.Warn("scheduling attempt failed", "podgroup", a.key, "attempt", a.head.Attempts, "err", a.err)
	} else {
		a.runPostFilter(ctx)
	}
	refused := []string{plugins.GangName}
	for _, t := range a.members {
		pod := t.it.Pod
		scheduler.nominate(pod, a.nominated[pod.Pod.UID])
		text := a.messageOf(t)
		t.reported = text
		if t.decision != nil && text != "" {
			t.decision.Message = text
		}
		_ = a.emitMark(t) // no binding depends on it
		refused = union(refused, t.refusedBy)
		a.report(ctx, t, reason, text)
	}
	a.writeCondition(ctx, metav1.ConditionFalse, condition, a.groupMessage())
	scheduler.queue.FinishGroup(a.head, a.items(), refused, a.err != nil)
}

// groupMessage says why the group could not be placed.
func (a *groupAttempt) groupMessage() string {
	switch {
	case a.err != nil:
		return a.err.Error()
	case a.message == "":
		return a.status.Error()
	}
	return a.status.Error() + ", pod group preemption: " + a.message
}

// messageOf says why a pod of a group that could not be placed has no node, in kube-scheduler's words.
func (a *groupAttempt) messageOf(t *member) string {
	switch {
	case a.err == nil && t.message != "":
		return t.message
	case a.err == nil && t.chosenNode == "": // it was not tried
		return a.status.Error()
	case a.err == nil && len(a.nominated) == 0:
		return errGroup.Error() + ", " + a.groupMessage()
	}
	return a.groupMessage()
}

// report reports why a pod has no node, with an event and in the pod's status.
func (a *groupAttempt) report(ctx context.Context, t *member, reason, message string) {
	result := unschedulable
	if reason == reasonError {
		result = failed
	}
	a.measureAttempt(result, a.start)
	a.s.enqueueWrite(ctx, a.s.report(t.it.Pod.Pod, reason, message, a.nominated[t.it.Pod.Pod.UID]))
}

// emitMark emits the mark of the attempt for one pod. It fails in tests only.
func (a *groupAttempt) emitMark(t *member) error {
	if a.s.cfg.Marks == nil {
		return nil
	}
	decision := t.decision
	if decision == nil { // it was not tried: the group was refused before
		decision = &event.Decision{Attempt: t.it.Attempts, QueueWait: a.start.Sub(t.it.Since), Message: t.reported}
		t.start = a.start
	}
	decision.PodGroup = a.summary(t)
	if t.binding == nil {
		decision.Chosen = ""
		decision.Scores = nil
		decision.Tied = 0
		decision.Waits = waitsFor(a.s.queue.WaitsFor(t.it.Pod.Pod, union(t.refusedBy, []string{plugins.GangName})),
			false)
	}
	return a.s.cfg.Marks.Reach(event.Event{
		Step:      event.StepDecision,
		Component: "scheduler",
		At:        t.start,
		Took:      t.took,
		Subject:   subject(t.it.Pod.Pod),
		Detail:    decision,
	})
}

// summary describes the group at the end of the attempt, and the consequence for one of its pods.
func (a *groupAttempt) summary(t *member) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %d of %d pods fit, %d must", a.key.Name, a.scheduled, a.group.Pods, a.group.MinCount())
	if a.err != nil {
		return out.String() + "; " + a.err.Error()
	}
	if t.chosenNode != "" {
		out.WriteString("; this one would go to " + t.chosenNode)
	}
	if a.status == nil {
		return out.String()
	}
	if len(a.nominated) > 0 {
		return out.String() + "; " + a.message
	}
	for _, o := range slices.Backward(a.members) { // the group failed because of the last one that was tried
		if o != t && o.decision != nil && len(o.decision.Fixes) > 0 {
			fmt.Fprintf(&out, "; nearest of the others: %s %s", o.it.Pod.Pod.Name, o.decision.Fixes[0])
			break
		}
	}
	return out.String()
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
