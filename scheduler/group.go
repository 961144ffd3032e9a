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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/lib/mark"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// groupAttempt is one attempt to schedule the pods of a pod group together. During the attempt the placed pods count on their nodes. They
// are removed again if the group as a whole does not get enough nodes. No pod is bound before that is decided.
type groupAttempt struct {
	*profile
	s     *Scheduler
	head  *queue.Item
	key   state.GroupKey
	group state.PodGroup
	began time.Time
	by    *framework.Engine // decides
	// decides and decidesIn make the attempt for one pod, in the cluster and in a copy of it.
	decides   func(*state.PodInfo) *framework.Attempt
	decidesIn func(*groupTrial, context.Context, *state.PodInfo) *framework.Attempt

	members   []*member
	scheduled int // pods of the group that have nodes, those of this attempt with them
	remaining int // that have not been tried yet
	// verdict is why the group cannot be placed; nil: it can. err is what went wrong.
	verdict *framework.Status
	err     error
	// nominated are the nodes where room is being made, by pod.
	nominated map[types.UID]string
	message   string // of preemption
	// advice is what extenders said, by pod. outdated: nodes have filled up since, and they are to be asked again.
	advice   map[types.UID]*framework.Advice
	outdated bool
}

// member is the attempt for one pod of the group.
type member struct {
	it       *queue.Item
	round    *round // nil: it has no node
	waits    map[string]time.Duration
	decision *mark.Decision
	began    time.Time
	took     time.Duration
	message  string // why it has none; empty: it was not tried
	would    string // the node that it would have had
	said     string // the message for users
	refused  []string
}

// tryGroup makes one attempt for a pod group: its pods are placed one after another, and bound if enough of them have nodes.
func (s *Scheduler) tryGroup(ctx context.Context, head *queue.Item) {
	if a := s.newGroupAttempt(head); !a.settled() {
		a.by = a.engine
		a.try(ctx)
	}
}

// settled gives the group back if there is nothing to try.
func (a *groupAttempt) settled() bool {
	switch {
	case len(a.members) == 0:
		a.s.queue.FinishGroup(a.head, nil, nil, false)
		return true
	case a.group.Object == nil: // it has gone: its pods wait for another of the name
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
		a.takeBack(ctx)
		return false
	}
	if a.err == nil && a.verdict == nil {
		a.permit(ctx)
	}
	if a.err == nil && a.verdict == nil {
		a.bind(ctx)
		return true
	}
	a.refuse(ctx)
	return true
}

func (s *Scheduler) newGroupAttempt(head *queue.Item) *groupAttempt {
	a := &groupAttempt{s: s, head: head, began: time.Now(), decidesIn: (*groupTrial).decide}
	a.decides = a.decide
	for _, it := range head.Members() {
		pod := it.Pod.Pod
		if node, _ := s.cache.Where(pod.UID); node != "" || pod.DeletionTimestamp != nil || s.profile(pod) == nil || !s.known(it.Pod) {
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
	a.scheduled, a.remaining = a.group.Scheduled, len(a.members)
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
			return fmt.Errorf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q and %q", p.Pod.Spec.SchedulerName, first.Spec.SchedulerName)
		}
		if want := a.group.Priority(); p.Priority != want {
			return fmt.Errorf("all pods in a single pod group should have the same priority as the pod group's priority, got %d and %d", p.Priority, want)
		}
		if is, want := preemptionPolicy(p.Pod), preemptionPolicy(first); is != want {
			return fmt.Errorf("all pods in a single pod group should have the same preemption policy, got %v and %v", is, want)
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
func (a *groupAttempt) feasible() (goOn bool) {
	a.verdict = nil
	for _, p := range a.placementFeasible {
		st, wait := p.PlacementFeasible(&a.group, a.scheduled, a.remaining)
		if st != nil {
			a.verdict = st
			return wait
		}
	}
	return true
}

// place gives nodes to as many pods as it can, until too few are left.
func (a *groupAttempt) place(ctx context.Context) {
	goOn := a.feasible()
	placed := 0
	for _, t := range a.members {
		if !goOn {
			break
		}
		if a.err = a.placeOne(ctx, t); a.err != nil || a.outdated {
			return
		}
		a.remaining--
		if t.round != nil {
			a.scheduled++
			placed++
		}
		goOn = a.feasible()
	}
	if a.verdict == nil && placed == 0 {
		a.verdict = errGroup
	}
}

// placeOne finds a node for one pod and counts the pod there.
func (a *groupAttempt) placeOne(ctx context.Context, t *member) error {
	s, pod := a.s, t.it.Pod
	t.began = time.Now()
	at := a.decides(pod)
	if a.outdated {
		return nil
	}
	a.measureDecision(at, t.began)
	defer func() { t.took = time.Since(t.began) }()
	if at.Failed != nil {
		return errors.New(at.Message())
	}
	if at.Chosen == nil {
		t.message, t.refused = at.Message(), at.RefusedBy()
	}
	if s.cfg.Marks != nil {
		t.decision = explain.Decision(at, t.it.Attempts, t.began.Sub(t.it.Since))
	}
	if at.Chosen == nil {
		return nil
	}
	r := &round{profile: a.profile, it: t.it, pod: pod, cycle: at.Cycle, node: at.Chosen.Name, began: a.began}
	s.cache.AssumeTentatively(pod.Pod.UID)
	switch err := s.runReserve(ctx, r, at.Chosen); {
	case err == nil:
		t.round = r
	case verdict(err) != nil:
		t.message, t.refused = err.Error(), []string{verdict(err).Plugin}
	default:
		return fmt.Errorf("failed to schedule other pod from a pod group: %w", err)
	}
	return nil
}

// own reports whether a pod belongs to the group. Nominations of its own pods reserve nothing, since they are being placed.
func (a *groupAttempt) own(p *state.PodInfo) bool {
	key, ok := state.GroupOf(p.Pod)
	return ok && key == a.key
}

// permit runs the Permit plugins, before any pod is bound. Pods that were deleted meanwhile are ignored.
func (a *groupAttempt) permit(ctx context.Context) {
	for _, t := range a.members {
		if t.round == nil {
			continue
		}
		if node, _ := a.s.cache.Where(t.it.Pod.Pod.UID); node == "" || !a.s.known(t.it.Pod) {
			a.s.unreserve(ctx, t.round)
			t.round = nil
		}
	}
	if a.recount(); a.verdict != nil {
		return
	}
	for _, t := range a.members {
		if t.round == nil {
			continue
		}
		err := t.round.timed("Permit", &t.round.times.Permit, func() (err error) {
			t.waits, err = a.s.runPermit(ctx, t.round)
			return err
		})
		if err == nil {
			continue
		}
		a.s.unreserve(ctx, t.round)
		t.message, t.round = err.Error(), nil
		if st := verdict(err); st != nil {
			t.refused = []string{st.Plugin}
		} else {
			a.err = err
			return
		}
	}
	a.recount()
}

// recount looks again at how many pods of the group have nodes.
func (a *groupAttempt) recount() {
	a.group = a.s.groups.Get(a.key)
	a.scheduled = a.group.Scheduled
	if a.group.Object == nil {
		a.verdict = errGroupGone
		return
	}
	if a.feasible(); a.verdict == nil && !slices.ContainsFunc(a.members, func(t *member) bool { return t.round != nil }) {
		a.verdict = errGroup
	}
}

// errGroup is said of a group of which no pod could be placed, and errGroupGone of one that was deleted meanwhile.
var (
	errGroup     = framework.Refuse(plugins.GangName, framework.Unschedulable, "pod group is unschedulable")
	errGroupGone = framework.Refuse(plugins.GangName, framework.Unschedulable, "the pod group is gone")
)

// bind lets the pods that have nodes go on; the others wait.
func (a *groupAttempt) bind(ctx context.Context) {
	s := a.s
	var back []*queue.Item
	var refused []string
	for _, t := range a.members {
		if t.round == nil {
			a.tell(t)
			back, refused = append(back, t.it), union(refused, t.refused)
			a.report(ctx, t, reasonUnschedulable, t.message)
			continue
		}
		if err := a.tell(t); err != nil {
			s.unreserve(ctx, t.round)
			s.queue.Assumed(t.it) // it comes back by itself
			s.later(ctx, s.failed(ctx, t.it, t.it.Pod, err, a.began))
			continue
		}
		s.queue.Assumed(t.it)
		s.denominate(t.it.Pod.Pod)
		var held *framework.WaitingPod
		if t.waits != nil {
			held = s.permits.Hold(t.round.pod, t.round.node, t.waits)
		}
		s.send(ctx, t.round, held)
	}
	a.condition(ctx, metav1.ConditionTrue, "Scheduled", "")
	s.queue.FinishGroup(a.head, back, union(refused, []string{plugins.GangName}), false)
}

// refuse takes back what was placed and says why.
func (a *groupAttempt) refuse(ctx context.Context) {
	s := a.s
	a.takeBack(ctx)
	s.cache.EndTentative() // before others may decide
	reason, condition, message := reasonUnschedulable, schedulingv1beta1.PodGroupReasonUnschedulable, ""
	if a.err != nil {
		reason, condition, message = reasonError, schedulingv1beta1.PodGroupReasonSchedulerError, a.err.Error()
		s.log.Warn("scheduling attempt failed", "podgroup", a.key, "attempt", a.head.Attempts, "err", a.err)
	} else {
		a.makeRoom(ctx)
		message = a.verdict.Error()
		if a.message != "" {
			message += ", " + a.message
		}
	}
	refused := []string{plugins.GangName}
	for _, t := range a.members {
		pod := t.it.Pod
		s.nominate(pod, a.nominated[pod.Pod.UID])
		said := t.message
		if said == "" || a.err != nil {
			said = message
		}
		t.said = said
		if t.decision != nil && said != "" {
			t.decision.Message = said
		}
		a.tell(t)
		refused = union(refused, t.refused)
		a.report(ctx, t, reason, said)
	}
	a.condition(ctx, metav1.ConditionFalse, condition, message)
	s.queue.FinishGroup(a.head, a.items(), refused, a.err != nil)
}

// report reports why a pod has no node, with an event and in the pod's status.
func (a *groupAttempt) report(ctx context.Context, t *member, reason, message string) {
	result := unschedulable
	if reason == reasonError {
		result = failed
	}
	a.measureAttempt(result, a.began)
	a.s.later(ctx, a.s.report(t.it.Pod.Pod, reason, message, a.nominated[t.it.Pod.Pod.UID]))
}

// tell emits the mark of the attempt for one pod. It fails in tests only.
func (a *groupAttempt) tell(t *member) error {
	if a.s.cfg.Marks == nil {
		return nil
	}
	d := t.decision
	if d == nil { // it was not tried, since it did not matter any more
		d, t.began = &mark.Decision{Attempt: t.it.Attempts, QueueWait: a.began.Sub(t.it.Since), Message: t.said}, a.began
	}
	d.PodGroup = a.stands(t)
	if t.round == nil {
		d.Chosen, d.Scores, d.Tied = "", nil, 0
		d.Waits = waits(a.s.queue.WaitsFor(t.it.Pod.Pod, union(t.refused, []string{plugins.GangName})), false)
	}
	return a.s.cfg.Marks.Reach(mark.Mark{
		Step: mark.StepDecision, Component: "scheduler", At: t.began, Took: t.took, Subject: subject(t.it.Pod.Pod), Detail: d,
	})
}

// stands describes the group at the end of the attempt, and the consequence for one of its pods.
func (a *groupAttempt) stands(t *member) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d of %d pods fit, %d must", a.key.Name, a.scheduled, a.group.Pods, a.group.MinCount())
	if a.err != nil {
		return b.String() + "; " + a.err.Error()
	}
	if t.would != "" {
		b.WriteString("; this one would go to " + t.would)
	}
	if a.verdict == nil {
		return b.String()
	}
	if len(a.nominated) > 0 {
		return b.String() + "; " + a.message
	}
	for _, o := range slices.Backward(a.members) { // the last one to be tried is what it failed for
		if o != t && o.decision != nil && len(o.decision.Fixes) > 0 {
			fmt.Fprintf(&b, "; nearest of the others: %s %s", o.it.Pod.Pod.Name, o.decision.Fixes[0])
			break
		}
	}
	return b.String()
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
