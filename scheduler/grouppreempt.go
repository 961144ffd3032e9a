// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/state"
)

// makeRoom runs preemption for the whole group: it looks for pods whose leaving would let the group be placed. The caller has taken back what
// the attempt had placed.
func (a *groupAttempt) makeRoom(ctx context.Context) {
	if len(a.groupPost) == 0 || a.group.Object == nil {
		return
	}
	at := a.roomNeeded(ctx)
	_ = a.measure("PostFilter", func() error {
		for _, p := range a.groupPost {
			if p.Name() == preempt.Name {
				a.metrics.preemptions.Inc()
			}
			nominated, message := p.PodGroupPostFilter(ctx, at)
			a.nominated, a.message = nominated, message
			if len(nominated) > 0 {
				return nil
			}
		}
		return errNoRoom
	})
}

// roomNeeded is the group that was not placed.
func (a *groupAttempt) roomNeeded(ctx context.Context) *framework.GroupAttempt {
	at := &framework.GroupAttempt{
		Group: a.group, NominatedBefore: a.s.cache.Nominated, Nodes: a.s.cache.Refresh().Nodes,
		Without: func(gone func(*state.PodInfo) bool) (framework.GroupTrial, *framework.Status) {
			return a.without(ctx, gone)
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

// mostJudged bounds how many times filters are asked about a pod to find out which victims may stay after all.
const mostJudged = 20_000

// groupTrial is a copy of the cluster's state in which the group has been placed.
type groupTrial struct {
	a      *groupAttempt
	engine *framework.Engine
	cache  *state.Cache
	pods   []*state.PodInfo
	nodes  map[types.UID]string
	advice map[types.UID]*framework.Advice // what extenders said
	across bool                            // what one pod of the group may do depends on pods of other nodes
	left   int
}

// without places the group in a copy of the cluster without the pods for which gone returns true. It calls the extenders as for the group
// itself: otherwise pods would be evicted for a group that the extenders refuse.
func (a *groupAttempt) without(ctx context.Context, gone func(*state.PodInfo) bool) (framework.GroupTrial, *framework.Status) {
	t := a.copyOf(gone)
	had, verdict := a.scheduled, a.verdict
	defer func() { a.scheduled, a.verdict = had, verdict }()
	if err := t.place(ctx); err != nil {
		return nil, framework.Refuse(preempt.Name, framework.Failed, err.Error())
	}
	if a.verdict == nil && len(t.pods) == 0 {
		a.verdict = errGroup
	}
	if a.verdict != nil {
		return nil, a.verdict
	}
	return t, nil
}

// copyOf is a copy of the cluster without the pods for which gone holds, where the group is not placed yet.
func (a *groupAttempt) copyOf(gone func(*state.PodInfo) bool) *groupTrial {
	t := &groupTrial{
		a: a, engine: framework.NewEngine(a.Profile, a.s.cfg.Parallelism, uint64(a.began.UnixNano())), //nolint:gosec // any seed will do
		cache: a.s.cache.Clone(gone), nodes: map[types.UID]string{}, left: mostJudged,
	}
	a.s.cache.EachNominated(func(p *state.PodInfo, node string) { // what others wait for is taken
		if p.Priority >= a.group.Priority() && !a.own(p) {
			_ = t.cache.Assume(p, node) // unless it has come there
		}
	})
	return t
}

// place gives nodes of the copy to as many pods of the group as it can. Whether they are enough is in the attempt's verdict.
func (t *groupTrial) place(ctx context.Context) error {
	a := t.a
	a.scheduled, a.remaining = a.group.Scheduled, len(a.members)
	goOn := a.feasible()
	for _, m := range a.members {
		if !goOn {
			break
		}
		pod := m.it.Pod
		a.remaining--
		at := a.decidesIn(t, ctx, pod)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case at.Failed != nil:
			return errors.New(at.Message())
		case at.Chosen != nil:
			if err := t.cache.Assume(pod, at.Chosen.Name); err != nil {
				return err
			}
			a.scheduled++
			t.pods, t.nodes[pod.Pod.UID] = append(t.pods, pod), at.Chosen.Name
			t.across = t.across || spans(pod)
		}
		goOn = a.feasible()
	}
	return nil
}

// spans reports whether pods on other nodes may influence the scheduling of a pod.
func spans(p *state.PodInfo) bool {
	return len(p.Affinity)+len(p.AntiAffinity)+len(p.Pod.Spec.TopologySpreadConstraints)+len(p.Pod.Spec.ResourceClaims)+len(p.Pod.Spec.Volumes) > 0
}

// Nodes implements framework.GroupTrial.
func (t *groupTrial) Nodes() map[types.UID]string { return t.nodes }

// Return implements framework.GroupTrial.
func (t *groupTrial) Return(pods []*state.PodInfo, on []string) bool {
	beside := map[string]bool{}
	across := t.across
	for i, p := range pods {
		beside[on[i]] = true
		across = across || len(p.AntiAffinity) > 0
	}
	var touched []*state.PodInfo
	for _, m := range t.pods {
		if across || beside[t.nodes[m.Pod.UID]] {
			touched = append(touched, m)
		}
	}
	if t.left -= len(touched); t.left < 0 {
		return len(touched) == 0
	}
	var could []*state.PodInfo // those of which the filters say that they fit where they are: they said so when fewer pods were there
	if across {
		for _, m := range touched {
			if t.fits(m) {
				could = append(could, m)
			}
		}
	} else {
		could = touched
	}
	back := 0
	ok := true
	for i, p := range pods {
		if ok = t.cache.Assume(p, on[i]) == nil; !ok {
			break
		}
		back++
	}
	for _, m := range could {
		if ok = ok && t.fits(m); !ok {
			break
		}
	}
	if !ok {
		for _, p := range pods[:back] {
			t.cache.Forget(p.Pod.UID)
		}
	}
	return ok
}

// fits reports whether a pod of the group still fits on its node.
func (t *groupTrial) fits(m *state.PodInfo) bool {
	node := t.nodes[m.Pod.UID]
	t.cache.Forget(m.Pod.UID)
	st := t.engine.Judge(m, t.cache.Refresh(), node)
	return t.cache.Assume(m, node) == nil && st == nil
}
