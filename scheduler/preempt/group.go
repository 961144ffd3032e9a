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

// unit is who goes together: one pod, or all pods of a group that says so (disruptionMode: all).
type unit struct {
	pods     []*state.PodInfo
	nodes    []string
	priority int32 // of a group with an object its own
	group    bool  // of a group, if only one pod of it
}

// unitOf is the unit of a pod, without it.
func unitOf(p *state.PodInfo, of func(*corev1.Pod) state.PodGroup) *unit {
	u := &unit{priority: p.Priority}
	if _, u.group = state.GroupOf(p.Pod); u.group {
		if g := of(p.Pod); g.Object != nil {
			u.priority = g.Priority()
		}
	}
	return u
}

func (u *unit) started() time.Time {
	first := farFuture
	for _, p := range u.pods {
		if t := started(p); t.Before(first) {
			first = t
		}
	}
	return first
}

// moreImportant puts first who is to be spared first: by priority, groups before pods, larger groups before smaller ones, and who has run for longer.
func moreImportant(x, y *unit) int {
	rank := func(u *unit) int {
		if u.group {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(y.priority, x.priority), cmp.Compare(rank(y), rank(x)), cmp.Compare(len(y.pods), len(x.pods)),
		x.started().Compare(y.started()), cmp.Compare(x.pods[0].Key, y.pods[0].Key))
}

// PodGroupPostFilter has less important pods leave, anywhere in the cluster, so that the group can be placed as a whole.
func (p *Plugin) PodGroupPostFilter(ctx context.Context, a *framework.GroupAttempt) (nominated map[types.UID]string, message string) {
	before := map[types.UID]string{}
	for _, pod := range a.Pods {
		if n := a.NominatedBefore(pod.Pod.UID); n != "" {
			before[pod.Pod.UID] = n
		}
	}
	id := a.Group.Object.UID
	switch {
	case p.cfg.Evictions.busy(id):
		return before, ""
	case never(a):
		return nil, preemptsNever
	case leaving(a, before):
		return before, "ongoing preemption on nominated nodes"
	}
	victims, nominated, why := chooseForGroup(a, p.budgets())
	if why != "" {
		return nil, why
	}
	p.evictAll(ctx, id, a.Pods[0].Pod, victims.pods, func(i int) string { return victims.nodes[i] })
	return nominated, fmt.Sprintf("found a placement for podgroup, preempting %d victims", len(victims.pods))
}

// ChooseForGroup is whom PodGroupPostFilter would drive away, or why nobody.
func (p *Plugin) ChooseForGroup(a *framework.GroupAttempt) (*framework.Preemption, string) {
	if never(a) {
		return nil, preemptsNever
	}
	victims, _, why := chooseForGroup(a, p.budgets())
	if why != "" {
		return nil, why
	}
	c := &framework.Preemption{Victims: victims.pods, Elsewhere: make(map[types.UID]string, len(victims.pods))}
	for i, v := range victims.pods {
		c.Elsewhere[v.Pod.UID] = victims.nodes[i]
	}
	return c, ""
}

func never(a *framework.GroupAttempt) bool {
	policy := a.Pods[0].Pod.Spec.PreemptionPolicy
	return policy != nil && *policy == corev1.PreemptNever
}

// leaving tells whether victims are on their way out of a node where room is being made for the group.
func leaving(a *framework.GroupAttempt, nominated map[types.UID]string) bool {
	at := map[string]bool{}
	for _, node := range nominated {
		at[node] = true
	}
	for _, n := range a.Nodes {
		if !at[n.Name] {
			continue
		}
		for _, p := range n.Pods {
			if p.Priority < a.Group.Priority() && p.Pod.DeletionTimestamp != nil && preempted(p.Pod) {
				return true
			}
		}
	}
	return false
}

// chooseForGroup returns whom to drive away and where the group's pods then go, or why that does not help.
func chooseForGroup(a *framework.GroupAttempt, budgets *guards) (victims unit, nominated map[types.UID]string, why string) {
	units := lessImportant(a)
	if len(units) == 0 {
		return unit{}, nil, "No preemption victims found for incoming preemptor"
	}
	gone := map[types.UID]bool{}
	var all []*state.PodInfo
	slices.SortFunc(units, moreImportant)
	for _, u := range units {
		all = append(all, u.pods...)
		for _, p := range u.pods {
			gone[p.Pod.UID] = true
		}
	}
	trial, st := a.Without(func(p *state.PodInfo) bool { return gone[p.Pod.UID] })
	if st != nil {
		return unit{}, nil, st.Error()
	}
	protected, _ := budgets.split(all)
	guarded := map[types.UID]bool{}
	for _, p := range protected {
		guarded[p.Pod.UID] = true
	}
	isGuarded := func(u *unit) bool {
		return slices.ContainsFunc(u.pods, func(p *state.PodInfo) bool { return guarded[p.Pod.UID] })
	}
	for _, first := range []bool{true, false} { // those whom a budget protects are spared first
		for _, u := range units {
			if isGuarded(u) == first && !trial.Return(u.pods, u.nodes) {
				victims.pods, victims.nodes = append(victims.pods, u.pods...), append(victims.nodes, u.nodes...)
			}
		}
	}
	return victims, trial.Nodes(), ""
}

// lessImportant are the units that may be driven away for the group.
func lessImportant(a *framework.GroupAttempt) []*unit {
	var out []*unit
	whole := map[state.GroupKey]*unit{}
	together := map[state.GroupKey]bool{}
	for _, n := range a.Nodes {
		for _, p := range n.Pods {
			u := unitOf(p, a.GroupOf)
			if u.priority >= a.Group.Priority() {
				continue
			}
			key, ok := state.GroupOf(p.Pod)
			if ok {
				all, known := together[key]
				if !known {
					g := a.GroupOf(p.Pod)
					all = g.Whole()
					together[key] = all
				}
				ok = all
			}
			if known := whole[key]; ok && known != nil {
				u = known
			} else {
				out = append(out, u)
			}
			if ok {
				whole[key] = u
			}
			u.pods, u.nodes = append(u.pods, p), append(u.nodes, n.Name)
		}
	}
	return out
}
