// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/event"
	"keelson/scheduler/core"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// groupSimulation is the attempt for a pod group in a simulation.
type groupSimulation struct {
	*groupAttempt
	simulation *simulation
	tasks      []task
	decisions  map[types.UID]*event.Decision
}

// addGroup adds a pod group of a manifest, unless it exists.
func (t *simulation) addGroup(podGroup *schedulingv1beta1.PodGroup) error {
	if t.s.groups == nil {
		return fmt.Errorf("pod group %s/%s: %w", podGroup.Namespace, podGroup.Name, errNoGroups)
	}
	key := keyOf(podGroup)
	if known := t.s.groups.Get(key); known.Object != nil {
		return nil
	}
	podGroup = podGroup.DeepCopy()
	podGroup.UID = types.UID("new-" + key.String())
	if podGroup.Spec.Priority == nil {
		podGroup.Spec.Priority = t.classes[podGroup.Spec.PriorityClassName]
	}
	t.s.groups.SetObject(key, podGroup)
	return nil
}

// groupNotReady returns why a group is not tried yet; empty: it is tried.
func (t *simulation) groupNotReady(key state.GroupKey) string {
	switch g := t.s.groups.Get(key); {
	case g.Object == nil:
		return fmt.Sprintf("it waits for the pod group %s", key.Name)
	case g.Object.Spec.SchedulingPolicy.Gang != nil && g.Pods < g.MinCount():
		return fmt.Sprintf("it waits for %d more pods of group %s (%d of %d)", g.MinCount()-g.Pods, key.Name, g.Pods,
			g.MinCount())
	}
	return ""
}

// tryGroup tries all pods of a group that wait, of which first is one, as the scheduler does: all that are needed get
// nodes, or none does.
func (t *simulation) tryGroup(ctx context.Context, first *task) error {
	key, _ := state.GroupOf(first.pod)
	q := &groupSimulation{simulation: t, tasks: []task{*first}, decisions: map[types.UID]*event.Decision{}}
	t.work = slices.DeleteFunc(t.work, func(o task) bool {
		of, _ := state.GroupOf(o.pod)
		with := of == key && !o.daemon && len(o.pod.Spec.SchedulingGates) == 0 && t.s.profile(o.pod) != nil
		if with {
			q.tasks = append(q.tasks, o)
		}
		return with
	})
	if why := t.groupNotReady(key); why != "" {
		for i := range q.tasks {
			t.answer.Outcomes = append(t.answer.Outcomes, q.tasks[i].outcome(why))
		}
		return nil
	}
	q.newAttempt(ctx, key)
	if q.err = q.check(); q.err == nil {
		q.placeAll(ctx)
	}
	var preemption *framework.Preemption
	if q.err == nil && q.status != nil {
		if preemption = q.choosePreemption(ctx); preemption != nil {
			for _, v := range preemption.Victims {
				if err := t.removePods([]*state.PodInfo{v},
					fmt.Sprintf("preempted on %s by group %s", preemption.NodeOf(v), key), preempted); err != nil {
					return err
				}
			}
			q.placeAll(ctx)
		}
	}
	q.addOutcomes(preemption)
	return nil
}

// newAttempt creates the attempt.
func (q *groupSimulation) newAttempt(ctx context.Context, key state.GroupKey) {
	simulation := q.simulation
	p := q.simulation.s.profile(q.tasks[0].pod)
	q.groupAttempt = &groupAttempt{
		s:          simulation.s,
		profile:    p,
		key:        key,
		start:      time.Now(),
		laneEngine: p.engine,
	}
	for i := range q.tasks {
		q.members = append(q.members,
			&member{it: &queue.Item{QueuedPod: framework.QueuedPod{Pod: state.NewPodInfo(q.tasks[i].pod)}}})
	}
	q.group = simulation.s.groups.Get(key)
	q.decideFunc = func(pod *state.PodInfo) *framework.Attempt {
		at := simulation.decide(ctx, q.laneEngine, simulation.s.cache, pod, q.isMember)
		q.decisions[pod.Pod.UID] = simulation.explain(at)
		return at
	}
	q.dryRunFunc = func(copied *groupDryRun, ctx context.Context, pod *state.PodInfo) *framework.Attempt {
		return simulation.decide(ctx, copied.engine, copied.cache, pod, nil)
	}
}

// placeAll gives nodes to the group's pods. If the group cannot be placed none has one afterwards.
func (q *groupSimulation) placeAll(ctx context.Context) {
	for _, m := range q.members { // of an earlier try
		m.chosenNode = ""
		m.message = ""
		m.refusedBy = nil
	}
	q.group = q.s.groups.Get(q.key)
	q.scheduled = q.group.Scheduled
	q.remaining = len(q.members)
	q.status = nil
	q.place(ctx)
	if q.err != nil || q.status != nil {
		q.unreserveAll(ctx)
	}
	q.s.cache.EndTentative()
}

// choosePreemption returns the victims that the group would preempt; nil: none, and q.message says why.
func (q *groupSimulation) choosePreemption(ctx context.Context) *framework.Preemption {
	for _, post := range q.postFilter {
		if post.GroupVictims == nil {
			continue
		}
		preemption, why := post.GroupVictims(q.postFilterInput(ctx))
		if preemption != nil {
			return preemption
		}
		q.message = why
	}
	return nil
}

// addOutcomes adds the outcomes of the pods.
func (q *groupSimulation) addOutcomes(preemption *framework.Preemption) {
	for i, member := range q.members {
		out := q.tasks[i].outcome("")
		decision := q.decisions[member.it.Pod.Pod.UID]
		if member.binding != nil {
			out.Node = member.binding.node
			q.simulation.allocateClaims(member.it.Pod.Pod)
		} else {
			out.Reason = q.messageOf(member)
		}
		if decision != nil {
			decision.PodGroup = q.summary(member)
			if member.binding == nil {
				decision.Chosen = ""
				decision.Scores = nil
				decision.Tied = 0
			}
			if member.binding != nil && preemption != nil { // only for one pod of the group
				decision.Preemption = explain.Preemption(preemption)
				preemption = nil
			}
		}
		out.Decision = decision
		q.simulation.answer.Outcomes = append(q.simulation.answer.Outcomes, out)
	}
}

// outcome returns the outcome of a pod without a node.
func (it *task) outcome(reason string) Outcome {
	return Outcome{
		Namespace: it.pod.Namespace,
		Name:      it.pod.Name,
		Workload:  it.workload,
		Why:       it.why,
		Reason:    reason,
	}
}

// explain returns the decision of an attempt, without hints to use drained nodes.
func (t *simulation) explain(a *framework.Attempt) *event.Decision {
	a.DrainedNodes = t.drained
	return explain.Decision(a, 1, 0)
}

// decide makes the attempt for one pod. It calls extenders to filter and score nodes, which changes nothing; one that
// fails is left out.
func (t *simulation) decide(
	ctx context.Context, engine *core.Engine, cache *state.Cache, pod *state.PodInfo,
	ignoreNominated func(*state.PodInfo) bool,
) *framework.Attempt {
	if !t.s.extendersInterested(pod.Pod) {
		return engine.Decide(pod, cache.Refresh(), ignoreNominated)
	}
	at := engine.FindFeasible(pod, cache.Refresh(), ignoreNominated)
	if at.Failed != nil || len(at.Feasible) == 0 {
		return at
	}
	nodes := make([]*corev1.Node, len(at.Feasible))
	for i, n := range at.Feasible {
		nodes[i] = n.Node
	}
	results, failed := t.s.extenders.FilterAndPrioritize(ctx, pod.Pod, nodes)
	if failed != nil {
		if !slices.Contains(t.failedExtenders, failed.Plugin) {
			t.failedExtenders = append(t.failedExtenders, failed.Plugin)
			t.note("the answer is without " + failed.Plugin + ": " + failed.Error())
		}
		return engine.Decide(pod, cache.Refresh(), ignoreNominated)
	}
	for _, why := range results.IgnoredErrors {
		t.note("the answer is without " + why)
	}
	results.RefusedByPlugins = append(results.RefusedByPlugins, at.Refused...)
	results.EvaluatedNodes = at.EvaluatedNodes
	return engine.DecideWith(results, pod, cache.Refresh(), ignoreNominated)
}
