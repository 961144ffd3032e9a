// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/core"
	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/state"
)

// runPostFilter runs preemption for the whole group. The caller has undone the placements of the attempt.
func (a *groupAttempt) runPostFilter(ctx context.Context) {
	if a.group.Object == nil || !slices.ContainsFunc(a.postFilter, postFiltersGroups) {
		return
	}
	at := a.postFilterInput(ctx)
	_ = a.measure("PostFilter", func() error {
		for _, p := range a.postFilter {
			if !postFiltersGroups(p) {
				continue
			}
			if p.Name == preempt.Name {
				a.metrics.preemptions.Inc()
			}
			nominated, message := p.GroupPostFilter(ctx, at)
			a.nominated = nominated
			a.message = message
			if len(nominated) > 0 {
				return nil
			}
		}
		return errNoNomination
	})
}

func postFiltersGroups(p framework.Weighted) bool { return p.GroupPostFilter != nil }

// postFilterInput returns the attempt for the PostFilter plugins.
func (a *groupAttempt) postFilterInput(ctx context.Context) *framework.GroupAttempt {
	at := &framework.GroupAttempt{
		Group:           a.group,
		NominatedBefore: a.s.cache.Nominated,
		Nodes:           a.s.cache.Refresh().Nodes,
		DryRunWithout: func(gone func(*state.PodInfo) bool) (framework.GroupDryRun, *framework.Status) {
			return a.dryRunWithout(ctx, gone)
		},
		GroupOf: func(p *corev1.Pod) state.PodGroup {
			key, _ := state.GroupOf(p)
			return a.s.groups.Get(key)
		},
	}
	for _, t := range a.members {
		at.Pods = append(at.Pods, t.it.Pod)
	}
	return at
}

// maxReprieveChecks is the maximum number of times that the filters run for a pod to find out which victims can be
// reprieved.
const maxReprieveChecks = 20_000

// groupDryRun is a copy of the cluster's state in which the group is placed.
type groupDryRun struct {
	a               *groupAttempt
	engine          *core.Engine
	cache           *state.Cache
	pods            []*state.PodInfo
	nodes           map[types.UID]string
	extenderResults map[types.UID]*framework.ExtenderResults // by pod
	// the scheduling of a pod of the group depends on pods on other nodes
	crossNode  bool
	checksLeft int
}

// dryRunWithout places the group in a copy of the cluster without the pods for which removed returns true. It calls the
// extenders as for the group itself: otherwise pods would be evicted for a group that the extenders refuse.
func (a *groupAttempt) dryRunWithout(
	ctx context.Context, gone func(*state.PodInfo) bool,
) (framework.GroupDryRun, *framework.Status) {
	groupDryRun := a.newDryRun(gone)
	scheduled := a.scheduled
	status := a.status
	defer func() {
		a.scheduled = scheduled
		a.status = status
	}()
	if err := groupDryRun.place(ctx); err != nil {
		return nil, framework.NewStatus(preempt.Name, framework.Failed, err.Error())
	}
	if a.status == nil && len(groupDryRun.pods) == 0 {
		a.status = errGroup
	}
	if a.status != nil {
		return nil, a.status
	}
	return groupDryRun, nil
}

// newDryRun returns a copy of the cluster without the pods for which removed returns true. The group is not placed in
// it yet.
func (a *groupAttempt) newDryRun(gone func(*state.PodInfo) bool) *groupDryRun {
	t := &groupDryRun{
		a:          a,
		engine:     core.NewEngine(a.Profile, a.s.cfg.Parallelism, uint64(a.start.UnixNano())), // any seed will do
		cache:      a.s.cache.Clone(gone),
		nodes:      map[types.UID]string{},
		checksLeft: maxReprieveChecks,
	}
	// the resources for which other pods are nominated are not free
	a.s.cache.EachNominated(func(p *state.PodInfo, node string) {
		if p.Priority >= a.group.Priority() && !a.isMember(p) {
			_ = t.cache.Assume(p, node) // an error means that it is on a node already
		}
	})
	return t
}

// place gives nodes of the copy to as many pods of the group as it can. The attempt's status says whether they are
// enough.
func (t *groupDryRun) place(ctx context.Context) error {
	groupAttempt := t.a
	groupAttempt.scheduled = groupAttempt.group.Scheduled
	groupAttempt.remaining = len(groupAttempt.members)
	proceed := groupAttempt.feasible()
	for _, m := range groupAttempt.members {
		if !proceed {
			break
		}
		pod := m.it.Pod
		groupAttempt.remaining--
		at := groupAttempt.dryRunFunc(t, ctx, pod)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case at.Failed != nil:
			return fmt.Errorf("%s: %w", at.Failed.Plugin, at.Failed)
		case at.Chosen != nil:
			if err := t.cache.Assume(pod, at.Chosen.Name); err != nil {
				return err
			}
			groupAttempt.scheduled++
			t.pods = append(t.pods, pod)
			t.nodes[pod.Pod.UID] = at.Chosen.Name
			t.crossNode = t.crossNode || dependsOnOtherNodes(pod)
		}
		proceed = groupAttempt.feasible()
	}
	return nil
}

// dependsOnOtherNodes reports whether pods on other nodes may influence the scheduling of a pod.
func dependsOnOtherNodes(p *state.PodInfo) bool {
	return len(p.Affinity)+len(p.AntiAffinity)+len(p.Pod.Spec.TopologySpreadConstraints)+len(p.Pod.Spec.ResourceClaims)+
		len(p.Pod.Spec.Volumes) > 0
}

// Nodes implements framework.GroupTrial.
func (t *groupDryRun) Nodes() map[types.UID]string { return t.nodes }

// Reprieve implements framework.GroupTrial.
func (t *groupDryRun) Reprieve(pods []*state.PodInfo, nodes []string) bool {
	onNodes := map[string]bool{}
	crossNode := t.crossNode
	for i, p := range pods {
		onNodes[nodes[i]] = true
		crossNode = crossNode || len(p.AntiAffinity) > 0
	}
	var affected []*state.PodInfo
	for _, m := range t.pods {
		if crossNode || onNodes[t.nodes[m.Pod.UID]] {
			affected = append(affected, m)
		}
	}
	if t.checksLeft -= len(affected); t.checksLeft < 0 {
		return len(affected) == 0
	}
	var fitting []*state.PodInfo // those that still fit on their nodes; they were placed when fewer pods were there
	if crossNode {
		for _, m := range affected {
			if t.fits(m) {
				fitting = append(fitting, m)
			}
		}
	} else {
		fitting = affected
	}
	returned := 0
	ok := true
	for i, p := range pods {
		if ok = t.cache.Assume(p, nodes[i]) == nil; !ok {
			break
		}
		returned++
	}
	for _, m := range fitting {
		if ok = ok && t.fits(m); !ok {
			break
		}
	}
	if !ok {
		for _, p := range pods[:returned] {
			t.cache.Forget(p.Pod.UID)
		}
	}
	return ok
}

// fits reports whether a pod of the group still fits on its node.
func (t *groupDryRun) fits(m *state.PodInfo) bool {
	node := t.nodes[m.Pod.UID]
	t.cache.Forget(m.Pod.UID)
	st := t.engine.FilterNode(m, t.cache.Refresh(), node)
	return t.cache.Assume(m, node) == nil && st == nil
}
