// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/scheduler/core"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/source"
	"keelson/scheduler/state"
)

// groupSimulation is the attempt for a pod group in a simulation.
type groupSimulation struct {
	*core.Group
	simulation *simulation
	tasks      []task
	decisions  map[types.UID]*decisions.Attempt
}

// addGroup adds a pod group of a manifest, unless it exists.
func (t *simulation) addGroup(podGroup *schedulingv1beta1.PodGroup) error {
	if t.core.Groups == nil {
		return fmt.Errorf("pod group %s/%s: %w", podGroup.Namespace, podGroup.Name, source.ErrNoGroups)
	}
	key := source.KeyOf(podGroup)
	if known := t.core.Groups.Get(key); known.Object != nil {
		return nil
	}
	podGroup = podGroup.DeepCopy()
	podGroup.UID = types.UID("new-" + key.String())
	if podGroup.Spec.Priority == nil {
		podGroup.Spec.Priority = t.classes[podGroup.Spec.PriorityClassName]
	}
	t.core.Groups.SetObject(key, podGroup)
	return nil
}

// groupNotReady returns why a group is not tried yet; empty: it is tried.
func (t *simulation) groupNotReady(key state.GroupKey) string {
	switch g := t.core.Groups.Get(key); {
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
	q := &groupSimulation{simulation: t, tasks: []task{*first}, decisions: map[types.UID]*decisions.Attempt{}}
	t.work = slices.DeleteFunc(t.work, func(o task) bool {
		of, _ := state.GroupOf(o.pod)
		with := of == key && !o.daemon && len(o.pod.Spec.SchedulingGates) == 0 && t.core.Profile(o.pod) != nil
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
	q.newAttempt()
	if q.Check(); q.Err == nil {
		q.PlaceAgain(ctx)
	}
	var preemption *framework.Preemption
	if q.Err == nil && q.Status != nil {
		if preemption = q.choosePreemption(ctx); preemption != nil {
			for _, v := range preemption.Victims {
				if err := t.removePods([]*state.PodInfo{v},
					fmt.Sprintf("preempted on %s by group %s", preemption.NodeOf(v), key), preempted); err != nil {
					return err
				}
			}
			q.PlaceAgain(ctx)
		}
	}
	q.addOutcomes(preemption)
	return nil
}

// newAttempt creates the attempt.
func (q *groupSimulation) newAttempt() {
	pods := make([]*state.PodInfo, len(q.tasks))
	for i := range q.tasks {
		pods[i] = state.NewPodInfo(q.tasks[i].pod)
	}
	q.Group = q.simulation.core.NewGroup(pods, q)
}

// Decide implements core.Placer.
func (q *groupSimulation) Decide(ctx context.Context, at int) *framework.Attempt {
	pod := q.Members[at].Pod
	attempt := q.simulation.decide(ctx, q.Profile.Engine, q.simulation.core.Cache, pod, q.IsMember)
	q.decisions[pod.Pod.UID] = q.simulation.explain(attempt)
	return attempt
}

// Assume implements core.Placer.
func (q *groupSimulation) Assume(ctx context.Context, _ int, p *core.Placement, node *state.NodeInfo) error {
	return q.simulation.core.Assume(ctx, p, node, nil)
}

// DecideIn implements core.Placer.
func (q *groupSimulation) DecideIn(ctx context.Context, copied *core.DryRun, pod *state.PodInfo) *framework.Attempt {
	return q.simulation.decide(ctx, copied.Engine, copied.Cache, pod, nil)
}

// choosePreemption returns the victims that the group would preempt; nil: none, and q.message says why.
func (q *groupSimulation) choosePreemption(ctx context.Context) *framework.Preemption {
	for _, post := range q.Profile.PostFilter {
		if post.GroupVictims == nil {
			continue
		}
		preemption, why := post.GroupVictims(q.Preemption(ctx))
		if preemption != nil {
			return preemption
		}
		q.Nominate(nil, why)
	}
	return nil
}

// addOutcomes adds the outcomes of the pods.
func (q *groupSimulation) addOutcomes(preemption *framework.Preemption) {
	for i, member := range q.Members {
		out := q.tasks[i].outcome("")
		decision := q.decisions[member.Pod.Pod.UID]
		if member.Placement != nil {
			out.Node = member.Placement.Node
			q.simulation.allocateClaims(member.Pod.Pod)
		} else {
			out.Reason = q.ReasonFor(member)
		}
		if decision != nil {
			decision.PodGroup = q.Summary(member)
			if member.Placement == nil {
				decision.Node = ""
				decision.Scores = nil
				decision.Tied = 0
			}
			if member.Placement != nil && preemption != nil { // only for one pod of the group
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
func (t *simulation) explain(a *framework.Attempt) *decisions.Attempt {
	a.DrainedNodes = t.drained
	return explain.Decision(a, 1, 0)
}

// interested reports whether an extender is interested in a pod.
func (t *simulation) interested(pod *corev1.Pod) bool {
	return t.extenders != nil && t.extenders.Interested(pod)
}

// decide makes the attempt for one pod. It calls extenders to filter and score nodes, which changes nothing; one that
// fails is left out.
func (t *simulation) decide(
	ctx context.Context, engine *core.Engine, cache *state.Cache, pod *state.PodInfo,
	ignoreNominated func(*state.PodInfo) bool,
) *framework.Attempt {
	if !t.interested(pod.Pod) {
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
	results, failed := t.extenders.FilterAndPrioritize(ctx, pod.Pod, nodes)
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
