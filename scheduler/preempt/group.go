// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// preemptionUnit is a set of pods that are evicted together: one pod, or all pods of a group with disruptionMode: all.
type preemptionUnit struct {
	pods     []*state.PodInfo
	nodes    []string
	priority int32 // of the PodGroup object, or of the pod
	group    bool  // the pods belong to a group, even if the unit is only one of its pods
}

// newUnit returns the unit of a pod, without the pod.
func newUnit(p *state.PodInfo, groupOf func(*corev1.Pod) state.PodGroup) *preemptionUnit {
	u := &preemptionUnit{priority: p.Priority}
	if _, u.group = state.GroupOf(p.Pod); u.group {
		if g := groupOf(p.Pod); g.Object != nil {
			u.priority = g.Priority()
		}
	}
	return u
}

func (u *preemptionUnit) startTime() time.Time {
	first := farFuture
	for _, p := range u.pods {
		if t := startTime(p); t.Before(first) {
			first = t
		}
	}
	return first
}

// compareUnits orders units by importance, the most important first: by priority, groups before pods, larger groups
// before smaller ones, and then by start time.
func compareUnits(x, y *preemptionUnit) int {
	rank := func(u *preemptionUnit) int {
		if u.group {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(y.priority, x.priority), cmp.Compare(rank(y), rank(x)),
		cmp.Compare(len(y.pods), len(x.pods)),
		x.startTime().Compare(y.startTime()), cmp.Compare(x.pods[0].Key, y.pods[0].Key))
}

// PodGroupPostFilter evicts less important pods, anywhere in the cluster, so that the group can be placed as a whole.
func (p *Plugin) PodGroupPostFilter(
	ctx context.Context, groupAttempt *framework.GroupAttempt,
) (nominated map[types.UID]string, message string) {
	before := map[types.UID]string{}
	for _, pod := range groupAttempt.Pods {
		if n := groupAttempt.NominatedBefore(pod.Pod.UID); n != "" {
			before[pod.Pod.UID] = n
		}
	}
	id := groupAttempt.Group.Object.UID
	switch {
	case p.cfg.Evictions.writing(id):
		return before, ""
	case preemptNever(groupAttempt):
		return nil, messagePreemptNever
	case victimsTerminating(groupAttempt, before):
		return before, "ongoing preemption on nominated nodes"
	}
	victims, nominated, why := chooseForGroup(groupAttempt, p.currentPDBs())
	if why != "" {
		return nil, why
	}
	p.evictAll(ctx, id, groupAttempt.Pods[0].Pod, victims.pods, func(i int) string { return victims.nodes[i] })
	return nominated, fmt.Sprintf("found a placement for podgroup, preempting %d victims", len(victims.pods))
}

// ChooseForGroup returns the victims that PodGroupPostFilter would evict, or why there are none.
func (p *Plugin) ChooseForGroup(a *framework.GroupAttempt) (*framework.Preemption, string) {
	if preemptNever(a) {
		return nil, messagePreemptNever
	}
	victims, _, why := chooseForGroup(a, p.currentPDBs())
	if why != "" {
		return nil, why
	}
	c := &framework.Preemption{Victims: victims.pods, OtherNodes: make(map[types.UID]string, len(victims.pods))}
	for i, v := range victims.pods {
		c.OtherNodes[v.Pod.UID] = victims.nodes[i]
	}
	return c, ""
}

func preemptNever(a *framework.GroupAttempt) bool {
	policy := a.Pods[0].Pod.Spec.PreemptionPolicy
	return policy != nil && *policy == corev1.PreemptNever
}

// victimsTerminating reports whether victims are terminating on a node to which pods of the group are nominated.
func victimsTerminating(a *framework.GroupAttempt, nominated map[types.UID]string) bool {
	at := map[string]bool{}
	for _, node := range nominated {
		at[node] = true
	}
	for _, n := range a.Nodes {
		if !at[n.Name] {
			continue
		}
		for _, p := range n.Pods {
			if p.Priority < a.Group.Priority() && p.Pod.DeletionTimestamp != nil && isPreempted(p.Pod) {
				return true
			}
		}
	}
	return false
}

// chooseForGroup returns the victims and the nodes of the group's pods after their eviction, or why that does not help.
func chooseForGroup(
	groupAttempt *framework.GroupAttempt, budgets *pdbs,
) (victims preemptionUnit, nominated map[types.UID]string, why string) {
	units := potentialVictims(groupAttempt)
	if len(units) == 0 {
		return preemptionUnit{}, nil, "No preemption victims found for incoming preemptor"
	}
	removed := map[types.UID]bool{}
	var all []*state.PodInfo
	slices.SortFunc(units, compareUnits)
	for _, u := range units {
		all = append(all, u.pods...)
		for _, p := range u.pods {
			removed[p.Pod.UID] = true
		}
	}
	dryRun, st := groupAttempt.DryRunWithout(func(p *state.PodInfo) bool { return removed[p.Pod.UID] })
	if st != nil {
		return preemptionUnit{}, nil, st.Error()
	}
	violating, _ := budgets.splitByViolation(all)
	violatesPDB := map[types.UID]bool{}
	for _, p := range violating {
		violatesPDB[p.Pod.UID] = true
	}
	hasViolation := func(u *preemptionUnit) bool {
		return slices.ContainsFunc(u.pods, func(p *state.PodInfo) bool { return violatesPDB[p.Pod.UID] })
	}
	for _, first := range []bool{true, false} { // units whose eviction violates a budget are reprieved first
		for _, u := range units {
			if hasViolation(u) == first && !dryRun.Reprieve(u.pods, u.nodes) {
				victims.pods = append(victims.pods, u.pods...)
				victims.nodes = append(victims.nodes, u.nodes...)
			}
		}
	}
	return victims, dryRun.Nodes(), ""
}

// potentialVictims returns the units that may be evicted for the group.
func potentialVictims(groupAttempt *framework.GroupAttempt) []*preemptionUnit {
	var out []*preemptionUnit
	unitOf := map[state.GroupKey]*preemptionUnit{}
	disruptedTogether := map[state.GroupKey]bool{}
	for _, info := range groupAttempt.Nodes {
		for _, p := range info.Pods {
			u := newUnit(p, groupAttempt.GroupOf)
			if u.priority >= groupAttempt.Group.Priority() {
				continue
			}
			key, ok := state.GroupOf(p.Pod)
			if ok {
				all, known := disruptedTogether[key]
				if !known {
					g := groupAttempt.GroupOf(p.Pod)
					all = g.DisruptionModeAll()
					disruptedTogether[key] = all
				}
				ok = all
			}
			if known := unitOf[key]; ok && known != nil {
				u = known
			} else {
				out = append(out, u)
			}
			if ok {
				unitOf[key] = u
			}
			u.pods = append(u.pods, p)
			u.nodes = append(u.nodes, info.Name)
		}
	}
	return out
}
