// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"

	"keelson/lib/mark"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// groupQuestion is a pod group at its turn.
type groupQuestion struct {
	*groupAttempt
	trial     *trial
	tasks     []task
	decisions map[types.UID]*mark.Decision
}

// groups adds the pod groups of a manifest where there are none of these names.
func (t *trial) groups(g *schedulingv1beta1.PodGroup, classes map[string]*int32) error {
	if t.s.groups == nil {
		return fmt.Errorf("pod group %s/%s: %w", g.Namespace, g.Name, errNoGroups)
	}
	key := keyOf(g)
	if known := t.s.groups.Get(key); known.Object != nil {
		return nil
	}
	g = g.DeepCopy()
	g.UID = types.UID("new-" + key.String())
	if g.Spec.Priority == nil {
		g.Spec.Priority = classes[g.Spec.PriorityClassName]
	}
	t.s.groups.SetObject(key, g)
	return nil
}

// waitsForGroup says for what a pod's group waits before it is tried; empty: for nothing.
func (t *trial) waitsForGroup(key state.GroupKey) string {
	switch g := t.s.groups.Get(key); {
	case g.Object == nil:
		return fmt.Sprintf("it waits for the pod group %s", key.Name)
	case g.Object.Spec.SchedulingPolicy.Gang != nil && g.Pods < g.MinCount():
		return fmt.Sprintf("it waits for %d more pods of group %s (%d of %d)", g.MinCount()-g.Pods, key.Name, g.Pods, g.MinCount())
	}
	return ""
}

// tryGroup tries all pods of a group that wait, of which first is one, as the scheduler does: all that are needed get nodes, or none does.
func (t *trial) tryGroup(ctx context.Context, first *task) {
	key, _ := state.GroupOf(first.pod)
	q := &groupQuestion{trial: t, tasks: []task{*first}, decisions: map[types.UID]*mark.Decision{}}
	t.work = slices.DeleteFunc(t.work, func(o task) bool {
		of, _ := state.GroupOf(o.pod)
		with := of == key && !o.daemon && len(o.pod.Spec.SchedulingGates) == 0 && t.s.profile(o.pod) != nil
		if with {
			q.tasks = append(q.tasks, o)
		}
		return with
	})
	if why := t.waitsForGroup(key); why != "" {
		for i := range q.tasks {
			t.answer.Outcomes = append(t.answer.Outcomes, q.tasks[i].outcome(why))
		}
		return
	}
	q.begin(ctx, key)
	if q.err = q.check(); q.err == nil {
		q.placeAll(ctx)
	}
	var room *framework.Preemption
	if q.err == nil && q.verdict != nil {
		if room = q.room(ctx); room != nil {
			for _, v := range room.Victims {
				t.removePods([]*state.PodInfo{v}, fmt.Sprintf("preempted on %s by group %s", room.NodeOf(v), key), preempted)
			}
			q.placeAll(ctx)
		}
	}
	q.tell(room)
}

// begin makes the attempt.
func (q *groupQuestion) begin(ctx context.Context, key state.GroupKey) {
	t, p := q.trial, q.trial.s.profile(q.tasks[0].pod)
	q.groupAttempt = &groupAttempt{s: t.s, profile: p, key: key, began: time.Now(), by: p.engine}
	for i := range q.tasks {
		q.members = append(q.members, &member{it: &queue.Item{QueuedPod: framework.QueuedPod{Pod: state.NewPodInfo(q.tasks[i].pod)}}})
	}
	q.group = t.s.groups.Get(key)
	q.decides = func(pod *state.PodInfo) *framework.Attempt {
		at := t.decide(ctx, q.by, t.s.cache, pod, q.own)
		q.decisions[pod.Pod.UID] = t.explain(at)
		return at
	}
	q.decidesIn = func(copied *groupTrial, ctx context.Context, pod *state.PodInfo) *framework.Attempt {
		return t.decide(ctx, copied.engine, copied.cache, pod, nil)
	}
}

// placeAll gives nodes to the group's pods. If the group cannot be placed none has one afterwards.
func (q *groupQuestion) placeAll(ctx context.Context) {
	for _, m := range q.members { // of an earlier try
		m.would, m.message, m.refused = "", "", nil
	}
	q.group = q.s.groups.Get(q.key)
	q.scheduled, q.remaining, q.verdict = q.group.Scheduled, len(q.members), nil
	q.place(ctx)
	if q.err != nil || q.verdict != nil {
		q.takeBack(ctx)
	}
	q.s.cache.EndTentative()
}

// room returns the victims that the group would preempt; nil: none, and the verdict says why.
func (q *groupQuestion) room(ctx context.Context) *framework.Preemption {
	for _, post := range q.groupPost {
		by, ok := post.(*preempt.Plugin)
		if !ok {
			continue
		}
		room, why := by.ChooseForGroup(q.roomNeeded(ctx))
		if room != nil {
			return room
		}
		q.message = ", " + why
	}
	return nil
}

// tell adds the outcomes of the pods.
func (q *groupQuestion) tell(room *framework.Preemption) {
	for i, m := range q.members {
		out, d := q.tasks[i].outcome(""), q.decisions[m.it.Pod.Pod.UID]
		switch {
		case m.round != nil:
			out.Node = m.round.node
		case q.err != nil:
			out.Reason = q.err.Error()
		case m.message != "":
			out.Reason = m.message
		default:
			out.Reason = q.verdict.Error() + q.message
		}
		if d != nil {
			d.PodGroup = q.stands(m)
			if m.round == nil {
				d.Chosen, d.Scores, d.Tied = "", nil, 0
			}
			if m.round != nil && room != nil { // it is told once
				d.Preemption, room = explain.Preemption(room), nil
			}
		}
		out.Decision = d
		q.trial.answer.Outcomes = append(q.trial.answer.Outcomes, out)
	}
}

// outcome returns the outcome of a pod without a node.
func (it *task) outcome(reason string) Outcome {
	return Outcome{Namespace: it.pod.Namespace, Name: it.pod.Name, Of: it.of, Why: it.why, Reason: reason}
}

// explain returns the decision of an attempt, without hints to use drained nodes.
func (t *trial) explain(a *framework.Attempt) *mark.Decision {
	a.Leaving = t.drained
	return explain.Decision(a, 1, 0)
}

// decide makes the attempt for one pod. Extenders say which nodes they refuse and score the others, which are questions; one that fails is
// left out.
func (t *trial) decide(ctx context.Context, by *framework.Engine, on *state.Cache, pod *state.PodInfo, but func(*state.PodInfo) bool) *framework.Attempt {
	if !t.s.askedAbout(pod.Pod) {
		return by.Decide(pod, on.Refresh(), but)
	}
	at := by.Fit(pod, on.Refresh(), but)
	if at.Failed != nil || len(at.Feasible) == 0 {
		return at
	}
	nodes := make([]*corev1.Node, len(at.Feasible))
	for i, n := range at.Feasible {
		nodes[i] = n.Node
	}
	advice, failed := t.s.extenders.Advise(ctx, pod.Pod, nodes)
	if failed != nil {
		if !slices.Contains(t.silent, failed.Plugin) {
			t.silent = append(t.silent, failed.Plugin)
			t.note("the answer is without " + failed.Plugin + ": " + failed.Error())
		}
		return by.Decide(pod, on.Refresh(), but)
	}
	for _, why := range advice.Ignored {
		t.note("the answer is without " + why)
	}
	advice.Before, advice.Looked = append(advice.Before, at.Refused...), at.Looked
	return by.DecideWith(advice, pod, on.Refresh(), but)
}
