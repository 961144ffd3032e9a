// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"
	"time"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// GangScheduling makes the pods of a gang wait until there are minCount of them. Then at least minCount pods get nodes,
// or none.
type GangScheduling struct {
	Groups  *state.Groups
	Waiting *framework.WaitingPods
}

// gangWait is how long a pod of a gang waits in Permit for the others.
const gangWait = 5 * time.Minute

// GangName is the plugin's name.
const GangName = "GangScheduling"

// Plugin returns the descriptor.
func (p GangScheduling) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:              GangName,
		PreEnqueue:        p.PreEnqueue,
		PlacementFeasible: p.PlacementFeasible,
		Permit:            p.Permit,
		Events:            p.events(),
	}
}

// PreEnqueue refuses a pod whose group does not exist, or has too few pods.
func (p GangScheduling) PreEnqueue(pod *state.PodInfo) *framework.Status {
	key, ok := state.GroupOf(pod.Pod)
	if !ok {
		return nil
	}
	g := p.Groups.Get(key)
	switch {
	case g.Object == nil:
		return framework.NewStatus(GangName, framework.Unresolvable,
			fmt.Sprintf("waiting for pods's pod group %q to appear in scheduling queue", key.Name))
	case g.Object.Spec.SchedulingPolicy.Gang != nil && g.Pods < g.MinCount():
		return framework.NewStatus(GangName, framework.Unresolvable,
			"waiting for minCount pods from a gang to appear in scheduling queue")
	}
	return nil
}

// PlacementFeasible refuses a group that cannot reach its minCount. wait: it may still reach it with the remaining
// pods.
func (GangScheduling) PlacementFeasible(g *state.PodGroup, scheduled, remaining int) (st *framework.Status, wait bool) {
	least := g.MinCount()
	switch {
	case scheduled+remaining < least:
		return framework.NewStatus(GangName, framework.Unschedulable,
				fmt.Sprintf("minCount (%d) cannot be satisfied: %d scheduled, %d remaining", least, scheduled,
					remaining)),
			false
	case scheduled < least:
		return framework.NewStatus(GangName, framework.Unschedulable,
			fmt.Sprintf("minCount (%d) is not yet satisfied: %d scheduled, %d remaining", least, scheduled,
				remaining)), true
	}
	return nil, false
}

// Permit makes a pod wait while fewer than minCount pods of its gang have nodes. The pod that completes minCount allows
// the waiting pods.
func (p GangScheduling) Permit(
	_ context.Context, _ *framework.CycleState, pod *state.PodInfo, _ string,
) (*framework.Status, time.Duration) {
	key, ok := state.GroupOf(pod.Pod)
	if !ok {
		return nil, 0
	}
	if g := p.Groups.Get(key); g.Object != nil && g.Scheduled < g.MinCount() {
		return nil, gangWait
	}
	for _, w := range p.Waiting.All() {
		if other, _ := state.GroupOf(w.Pod.Pod); other == key {
			w.Allow(GangName)
		}
	}
	return nil, 0
}

// PodGroups is the resource of pod groups.
var PodGroups = schedulingv1beta1.SchemeGroupVersion.WithResource("podgroups")

// events names what may help: a pod of the group that another scheduler binds, the PodGroup object, or a
// lower minCount. There is no event for another waiting pod of the group: the queue handles it itself.
func (GangScheduling) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{
			Kinds: framework.AssignedPodAdd,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				own, _ := state.GroupOf(pod.Pod)
				other, ok := state.GroupOf(e.NewPod)
				return ok && own == other
			},
		},
		{Kinds: framework.Objects, Resource: PodGroups, QueueingHintFn: isSchedulableAfterPodGroupChange},
	}
}

func isSchedulableAfterPodGroupChange(pod *state.PodInfo, e *framework.Event) bool {
	own, ok := state.GroupOf(pod.Pod)
	now, set := e.NewObject.(*schedulingv1beta1.PodGroup)
	if !ok || !set || own != (state.GroupKey{Namespace: now.Namespace, Name: now.Name}) {
		return false
	}
	old, had := e.OldObject.(*schedulingv1beta1.PodGroup)
	if !had {
		return true
	}
	before := old.Spec.SchedulingPolicy.Gang
	after := now.Spec.SchedulingPolicy.Gang
	return before != nil && after != nil && after.MinCount < before.MinCount
}
