// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/lib/words"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/state"
)

// Group is one attempt to place the pods of a pod group together. During the attempt the placed pods count on their
// nodes. They are removed again if the group as a whole does not get enough nodes. No pod is bound before that is
// decided.
type Group struct {
	Profile *Profile
	Key     state.GroupKey
	// State is the group before the attempt, or at the last Recount.
	State   state.PodGroup
	Members []*Member
	// Status is why the group cannot be placed; nil: it can. Err is an error of the attempt.
	Status *framework.Status
	Err    error
	// Nominated are the nominated nodes, by pod, and Message is what preemption says.
	Nominated map[types.UID]string
	Message   string

	core      *Core
	placer    Placer
	scheduled int // pods of the group that have nodes, including those of this attempt
	remaining int // pods that have not been tried yet
}

// Member is the attempt for one pod of the group.
type Member struct {
	Pod       *state.PodInfo
	Placement *Placement // nil: the pod has no node
	Message   string     // why the pod has no node; empty: it was not tried
	RefusedBy []string
	// ChosenNode is the node of an undone placement.
	ChosenNode string
	// Fixes are hints for a pod that fits nowhere.
	Fixes []string
}

// Placer makes the steps of the attempt that differ between the scheduler and a simulation. at is the index of a
// member.
type Placer interface {
	// Decide makes the attempt for one pod. nil: the attempt for the group ends here, and must be made again.
	Decide(ctx context.Context, at int) *framework.Attempt
	// Assume assumes the pod on the chosen node, by Core.Assume.
	Assume(ctx context.Context, at int, p *Placement, node *state.NodeInfo) error
	// DecideIn makes the attempt for one pod in a copy of the cluster.
	DecideIn(ctx context.Context, dryRun *DryRun, pod *state.PodInfo) *framework.Attempt
}

// NewGroup returns the attempt for pods of one pod group, in the order in which they are tried. There is at least one.
func (c *Core) NewGroup(pods []*state.PodInfo, placer Placer) *Group {
	key, _ := state.GroupOf(pods[0].Pod)
	g := &Group{
		Profile: c.Profile(pods[0].Pod),
		Key:     key,
		State:   c.Groups.Get(key),
		core:    c,
		placer:  placer,
	}
	for _, p := range pods {
		g.Members = append(g.Members, &Member{Pod: p})
	}
	g.scheduled = g.State.Scheduled
	g.remaining = len(g.Members)
	return g
}

// TryGroup checks the pods of a group and places them. It returns true if the Placer ended the attempt: then no pod is
// placed. Otherwise g.Err and g.Status say whether the group is placed.
func (c *Core) TryGroup(ctx context.Context, g *Group) (again bool) {
	if g.Err == nil {
		g.Check()
	}
	if g.Err == nil {
		again = g.Place(ctx)
	}
	if again {
		g.Forget(ctx)
	}
	return again
}

// Fail ends the attempt with an error.
func (g *Group) Fail(err error) { g.Err = err }

// Nominate records the result of preemption.
func (g *Group) Nominate(nominated map[types.UID]string, message string) {
	g.Nominated = nominated
	g.Message = message
}

// Check requires that the pods of a group agree in the fields that decide for all.
func (g *Group) Check() { g.Err = g.check() }

func (g *Group) check() error {
	first := g.Members[0].Pod.Pod
	for _, m := range g.Members {
		p := m.Pod
		if p.Pod.Spec.SchedulerName != first.Spec.SchedulerName {
			return fmt.Errorf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q "+
				"and %q", p.Pod.Spec.SchedulerName, first.Spec.SchedulerName)
		}
		if want := g.State.Priority(); p.Priority != want {
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
func (g *Group) feasible() (proceed bool) {
	g.Status = nil
	for _, p := range g.Profile.Plugins {
		if p.PlacementFeasible == nil {
			continue
		}
		st, wait := p.PlacementFeasible(&g.State, g.scheduled, g.remaining)
		if st != nil {
			g.Status = st
			return wait
		}
	}
	return true
}

// Place gives nodes to as many pods as it can, until too few are left. It returns true if the Placer ended the attempt.
func (g *Group) Place(ctx context.Context) (again bool) {
	proceed := g.feasible()
	placed := 0
	for at, m := range g.Members {
		if !proceed {
			break
		}
		if again, g.Err = g.placeOne(ctx, at, m); g.Err != nil || again {
			return again
		}
		g.remaining--
		if m.Placement != nil {
			g.scheduled++
			placed++
		}
		proceed = g.feasible()
	}
	if g.Status == nil && placed == 0 {
		g.Status = errGroup
	}
	return false
}

// PlaceAgain places the group after victims have left. If it cannot be placed, no pod has a node afterwards.
func (g *Group) PlaceAgain(ctx context.Context) {
	for _, m := range g.Members {
		m.ChosenNode = ""
		m.Message = ""
		m.RefusedBy = nil
	}
	g.State = g.core.Groups.Get(g.Key)
	g.scheduled = g.State.Scheduled
	g.remaining = len(g.Members)
	g.Status = nil
	g.Place(ctx)
	if g.Err != nil || g.Status != nil {
		g.Forget(ctx)
	}
	g.core.Cache.EndTentative()
}

// placeOne finds a node for one pod and counts the pod there.
func (g *Group) placeOne(ctx context.Context, at int, m *Member) (again bool, err error) {
	attempt := g.placer.Decide(ctx, at)
	switch {
	case attempt == nil:
		return true, nil
	case attempt.Failed != nil:
		return false, errors.New(attempt.Message())
	case attempt.Chosen == nil:
		m.Message = attempt.Message()
		m.RefusedBy = attempt.RefusedBy()
		return false, nil
	}
	g.core.Cache.AssumeTentatively(m.Pod.Pod.UID)
	p := &Placement{Profile: g.Profile, Pod: m.Pod, Cycle: attempt.Cycle, Node: attempt.Chosen.Name}
	switch err := g.placer.Assume(ctx, at, p, attempt.Chosen); {
	case err == nil:
		m.Placement = p
	case framework.Rejection(err) != nil:
		m.refuse(err)
	default:
		return false, fmt.Errorf("failed to schedule other pod from a pod group: %w", err)
	}
	return false, nil
}

// refuse records that a plugin refused the pod after it had got a node.
func (m *Member) refuse(err error) {
	m.Message = err.Error()
	m.RefusedBy = []string{framework.Rejection(err).Plugin}
}

// IsMember reports whether a pod belongs to the group. Nominations of its own pods reserve nothing, since they are
// being placed.
func (g *Group) IsMember(p *state.PodInfo) bool {
	key, ok := state.GroupOf(p.Pod)
	return ok && key == g.Key
}

// Drop takes the node from a member, because of err or, if that is nil, because the pod is gone.
func (g *Group) Drop(ctx context.Context, m *Member, err error) {
	g.core.Forget(ctx, m.Placement)
	m.Placement = nil
	switch {
	case err == nil:
	case framework.Rejection(err) != nil:
		m.refuse(err)
	default:
		m.Message = err.Error()
		g.Err = err
	}
}

// Forget undoes the placements, in reverse order.
func (g *Group) Forget(ctx context.Context) {
	for _, m := range slices.Backward(g.Members) {
		if m.Placement != nil {
			g.core.Forget(ctx, m.Placement)
			m.ChosenNode = m.Placement.Node
			m.Placement = nil
		}
	}
}

// Recount counts again how many pods of the group have nodes.
func (g *Group) Recount() {
	g.State = g.core.Groups.Get(g.Key)
	g.scheduled = g.State.Scheduled
	if g.State.Object == nil {
		g.Status = errGroupGone
		return
	}
	if g.feasible(); g.Status == nil && !slices.ContainsFunc(g.Members, func(m *Member) bool {
		return m.Placement != nil
	}) {
		g.Status = errGroup
	}
}

// errGroup is the status of a group of which no pod could be placed, errGroupGone that of a group that was deleted
// during the attempt.
var (
	errGroup     = framework.NewStatus(plugins.GangName, framework.Unschedulable, "pod group is unschedulable")
	errGroupGone = framework.NewStatus(plugins.GangName, framework.Unschedulable, "the pod group is gone")
)

// Reason says why the group could not be placed.
func (g *Group) Reason() string {
	switch {
	case g.Err != nil:
		return g.Err.Error()
	case g.Message == "":
		return g.Status.Error()
	}
	return g.Status.Error() + ", pod group preemption: " + g.Message
}

// ReasonFor says why a pod of a group that could not be placed has no node, in kube-scheduler's words.
func (g *Group) ReasonFor(m *Member) string {
	switch {
	case g.Err == nil && m.Message != "":
		return m.Message
	case g.Err == nil && m.ChosenNode == "": // it was not tried
		return g.Status.Error()
	case g.Err == nil && len(g.Nominated) == 0:
		return errGroup.Error() + ", " + g.Reason()
	}
	return g.Reason()
}

// Summary describes the group at the end of the attempt, and the consequence for one of its pods.
func (g *Group) Summary(m *Member) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %d of %s fit, %d must", g.Key.Name, g.scheduled, words.Count(g.State.Pods, "pod"),
		g.State.MinCount())
	if g.Err != nil {
		return out.String() + "; " + g.Err.Error()
	}
	if m.ChosenNode != "" {
		out.WriteString("; this one would go to " + m.ChosenNode)
	}
	if g.Status == nil {
		return out.String()
	}
	if len(g.Nominated) > 0 {
		return out.String() + "; " + g.Message
	}
	for _, o := range slices.Backward(g.Members) { // the group failed because of the last one that was tried
		if o != m && len(o.Fixes) > 0 {
			fmt.Fprintf(&out, "; nearest of the others: %s %s", o.Pod.Pod.Name, o.Fixes[0])
			break
		}
	}
	return out.String()
}

// Preemption returns the attempt for the PostFilter plugins. The placements of the attempt are undone.
func (g *Group) Preemption(ctx context.Context) *framework.GroupAttempt {
	a := &framework.GroupAttempt{
		Group:           g.State,
		NominatedBefore: g.core.Cache.Nominated,
		Nodes:           g.core.Cache.Refresh().Nodes,
		DryRunWithout: func(gone func(*state.PodInfo) bool) (framework.GroupDryRun, *framework.Status) {
			return g.dryRunWithout(ctx, gone)
		},
		GroupOf: func(p *corev1.Pod) state.PodGroup {
			key, _ := state.GroupOf(p)
			return g.core.Groups.Get(key)
		},
	}
	for _, m := range g.Members {
		a.Pods = append(a.Pods, m.Pod)
	}
	return a
}
