// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/state"
)

// maxReprieveChecks is the maximum number of times that the filters run for a pod to find out which victims can be
// reprieved.
const maxReprieveChecks = 20_000

// DryRun is a copy of the cluster's state in which a group is placed.
type DryRun struct {
	// Engine decides on the snapshots of Cache, the copy.
	Engine *Engine
	Cache  *state.Cache

	g     *Group
	pods  []*state.PodInfo
	nodes map[types.UID]string
	// the scheduling of a pod of the group depends on pods on other nodes
	crossNode  bool
	checksLeft int
}

// dryRunWithout places the group in a copy of the cluster without the pods for which gone returns true. It calls the
// extenders as for the group itself: otherwise pods would be evicted for a group that the extenders refuse.
func (g *Group) dryRunWithout(
	ctx context.Context, gone func(*state.PodInfo) bool,
) (framework.GroupDryRun, *framework.Status) {
	dryRun := g.NewDryRun(gone)
	scheduled := g.scheduled
	status := g.Status
	defer func() {
		g.scheduled = scheduled
		g.Status = status
	}()
	if err := dryRun.Place(ctx); err != nil {
		return nil, framework.NewStatus(preempt.Name, framework.Failed, err.Error())
	}
	if g.Status == nil && len(dryRun.pods) == 0 {
		g.Status = errGroup
	}
	if g.Status != nil {
		return nil, g.Status
	}
	return dryRun, nil
}

// NewDryRun returns a copy of the cluster without the pods for which gone returns true. The group is not placed in it
// yet.
func (g *Group) NewDryRun(gone func(*state.PodInfo) bool) *DryRun {
	t := &DryRun{
		Engine:     NewEngine(g.Profile.Profile, g.core.cfg.Parallelism, g.core.cfg.Seed),
		Cache:      g.core.Cache.Clone(gone),
		g:          g,
		nodes:      map[types.UID]string{},
		checksLeft: maxReprieveChecks,
	}
	// the resources for which other pods are nominated are not free
	g.core.Cache.EachNominated(func(p *state.PodInfo, node string) {
		if p.Priority >= g.State.Priority() && !g.IsMember(p) {
			_ = t.Cache.Assume(p, node) // an error means that it is on a node already
		}
	})
	return t
}

// Place gives nodes of the copy to as many pods of the group as it can. The group's status says whether they are
// enough.
func (t *DryRun) Place(ctx context.Context) error {
	g := t.g
	g.scheduled = g.State.Scheduled
	g.remaining = len(g.Members)
	proceed := g.feasible()
	for _, m := range g.Members {
		if !proceed {
			break
		}
		g.remaining--
		attempt := g.placer.DecideIn(ctx, t, m.Pod)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case attempt.Failed != nil:
			return fmt.Errorf("%s: %w", attempt.Failed.Plugin, attempt.Failed)
		case attempt.Chosen != nil:
			if err := t.Cache.Assume(m.Pod, attempt.Chosen.Name); err != nil {
				return err
			}
			g.scheduled++
			t.pods = append(t.pods, m.Pod)
			t.nodes[m.Pod.Pod.UID] = attempt.Chosen.Name
			t.crossNode = t.crossNode || dependsOnOtherNodes(m.Pod)
		}
		proceed = g.feasible()
	}
	return nil
}

// dependsOnOtherNodes reports whether pods on other nodes may influence the scheduling of a pod.
func dependsOnOtherNodes(p *state.PodInfo) bool {
	return len(p.Affinity)+len(p.AntiAffinity)+len(p.Pod.Spec.TopologySpreadConstraints)+len(p.Pod.Spec.ResourceClaims)+
		len(p.Pod.Spec.Volumes) > 0
}

// Nodes implements framework.GroupDryRun.
func (t *DryRun) Nodes() map[types.UID]string { return t.nodes }

// Reprieve implements framework.GroupDryRun.
func (t *DryRun) Reprieve(pods []*state.PodInfo, nodes []string) bool {
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
		if ok = t.Cache.Assume(p, nodes[i]) == nil; !ok {
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
			t.Cache.Forget(p.Pod.UID)
		}
	}
	return ok
}

// fits reports whether a pod of the group still fits on its node.
func (t *DryRun) fits(m *state.PodInfo) bool {
	node := t.nodes[m.Pod.UID]
	t.Cache.Forget(m.Pod.UID)
	st := t.Engine.FilterNode(m, t.Cache.Refresh(), node)
	return t.Cache.Assume(m, node) == nil && st == nil
}
