// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// InterPodAffinity keeps pods near to, or away from, pods that they name by labels, and respects what pods already there
// require of newcomers. It also ranks nodes by the preferred terms of both sides.
type InterPodAffinity struct {
	// HardWeight is what a required affinity of a pod already there is worth to a newcomer that it matches.
	HardWeight int64
	// NotOthers leaves preferences of pods already there out for newcomers that have none.
	NotOthers bool
}

const interPodName = "InterPodAffinity"

// Name is the plugin's.
func (InterPodAffinity) Name() string { return interPodName }

var (
	noFriend     = framework.Refuse(interPodName, framework.Unresolvable, "node(s) didn't match pod affinity rules")
	foe          = framework.Refuse(interPodName, framework.Unschedulable, "node(s) didn't match pod anti-affinity rules")
	foeOfSomeone = framework.Refuse(interPodName, framework.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules")
)

// PreFilter has nothing to say when neither the pod nor any pod that matches it requires something.
func (InterPodAffinity) PreFilter(_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	f := &interPod{pod: pod, snap: s, ns: s.Namespaces}
	if s.AnyHolders(state.HoldsAntiAffinity) {
		for _, g := range s.Holders(state.HoldsAntiAffinity, pod.Pod) {
			f.dread(g.Sums(g.Term.TopologyKey))
		}
	}
	for _, t := range pod.AntiAffinity {
		c := s.Count(state.Query{Terms: []*state.Term{t}})
		f.away = append(f.away, tally{Sums: c.Sums(t.TopologyKey)})
	}
	if len(pod.Affinity) > 0 {
		q := state.Query{Terms: pod.Affinity}
		c := s.Count(q)
		for _, t := range pod.Affinity {
			f.near = append(f.near, tally{Sums: c.Sums(t.TopologyKey)})
		}
		f.likesItself = q.Matches(pod.Pod, s.Namespaces[pod.Pod.Namespace])
	}
	if len(f.near)+len(f.away)+len(f.dreaded) == 0 {
		return nil, nil
	}
	f.first()
	return f, nil
}

// interPod holds, for one pod, how many of its friends and foes are where.
type interPod struct {
	pod  *state.PodInfo
	snap *state.Snapshot
	ns   map[string]labels.Set
	// near: pods that match all affinity terms, by each term's key. away: pods that match an anti-affinity term.
	// dreaded: pods whose own anti-affinity matches this pod.
	near, away, dreaded []tally
	// likesItself: the pod matches its own affinity, so it may be the first of its kind (isFirst) anywhere.
	likesItself, isFirst bool
}

// dread adds sums of foes; those with the same key are added up.
func (f *interPod) dread(sums *state.Sums) {
	i := slices.IndexFunc(f.dreaded, func(o tally) bool { return o.Column == sums.Column })
	if i < 0 {
		f.dreaded = append(f.dreaded, tally{Sums: sums})
		return
	}
	all := &state.Sums{Column: sums.Column, N: slices.Clone(f.dreaded[i].N)}
	for id, n := range sums.N {
		all.N[id] += n
	}
	for _, n := range all.N {
		if n != 0 {
			all.Some++
		}
	}
	f.dreaded[i].Sums = all
}

func (f *interPod) first() {
	f.isFirst = f.likesItself
	for i := range f.near {
		f.isFirst = f.isFirst && f.near[i].empty()
	}
}

func (f *interPod) Filter(n *state.NodeInfo) *framework.Status {
	near := true
	for i := range f.near {
		id := f.near[i].On(n)
		if id < 0 {
			return noFriend
		}
		near = near && f.near[i].at(id) > 0
	}
	if !near && !f.isFirst {
		return noFriend
	}
	for i := range f.away {
		if f.away[i].at(f.away[i].On(n)) > 0 {
			return foe
		}
	}
	for i := range f.dreaded {
		if f.dreaded[i].at(f.dreaded[i].On(n)) > 0 {
			return foeOfSomeone
		}
	}
	return nil
}

// FilterAll judges all nodes.
func (f *interPod) FilterAll(out []*framework.Status) {
	for i := range f.near {
		t := &f.near[i]
		for place, id := range t.Of {
			if out[place] == nil && (id < 0 || !f.isFirst && t.at(id) <= 0) {
				out[place] = noFriend
			}
		}
	}
	refuse := func(ts []tally, st *framework.Status) {
		for i := range ts {
			t := &ts[i]
			if t.delta == nil && t.less == nil && t.Some == 0 {
				continue
			}
			for place, id := range t.Of {
				if id >= 0 && out[place] == nil && t.at(id) > 0 {
					out[place] = st
				}
			}
		}
	}
	refuse(f.away, foe)
	refuse(f.dreaded, foeOfSomeone)
}

// Adjust recounts for pods that come to and leave one node.
func (f *interPod) Adjust(n *state.NodeInfo, added, removed []*state.PodInfo) framework.NodeFilter {
	c := *f
	c.near, c.away, c.dreaded = slices.Clone(f.near), slices.Clone(f.away), slices.Clone(f.dreaded)
	matches := func(q state.Query) func(*state.PodInfo) bool {
		return func(p *state.PodInfo) bool { return q.Matches(p.Pod, f.ns[p.Pod.Namespace]) }
	}
	if len(c.near) > 0 {
		diff := difference(added, removed, matches(state.Query{Terms: f.pod.Affinity}))
		for i := range c.near {
			c.near[i] = c.near[i].plus(n, diff)
		}
	}
	for i, t := range f.pod.AntiAffinity {
		c.away[i] = c.away[i].plus(n, difference(added, removed, matches(state.Query{Terms: []*state.Term{t}})))
	}
	c.adjustDread(n, added, 1)
	c.adjustDread(n, removed, -1)
	c.first()
	return &c
}

func (f *interPod) adjustDread(n *state.NodeInfo, pods []*state.PodInfo, sign int64) {
	for _, p := range pods {
		for _, t := range p.AntiAffinity {
			if !t.Matches(f.pod.Pod, f.ns[f.pod.Pod.Namespace]) {
				continue
			}
			col := f.snap.Column(t.TopologyKey)
			i := slices.IndexFunc(f.dreaded, func(o tally) bool { return o.Column == col })
			if i < 0 {
				f.dreaded = append(f.dreaded, tally{Sums: &state.Sums{Column: col, N: make([]int64, len(col.Values))}})
				i = len(f.dreaded) - 1
			}
			f.dreaded[i] = f.dreaded[i].plus(n, sign)
		}
	}
}

// Explain says where the pods are, by label.
func (f *interPod) Explain(_ *state.PodInfo, n *state.NodeInfo, st *framework.Status) (short, hint string, distance float64) {
	about := func(ts []tally, say string, bad func(t *tally, id int32) bool) string {
		for i := range ts {
			if id := ts[i].On(n); bad(&ts[i], id) {
				if id < 0 {
					return "node has no label " + ts[i].Key()
				}
				return fmt.Sprintf(say+" %s=%s", ts[i].Key(), ts[i].Values[id])
			}
		}
		return ""
	}
	present := func(t *tally, id int32) bool { return t.at(id) > 0 }
	switch st {
	case noFriend:
		short = about(f.near, "no pod it wants to be near in", func(t *tally, id int32) bool { return !present(t, id) })
	case foe:
		short = about(f.away, "a pod it keeps away from is in", present)
	case foeOfSomeone:
		short = about(f.dreaded, "a pod that keeps it away is in", present)
	}
	return short, "", 1
}

// EventsToRegister names what may help: pods that come, go or change labels, and nodes that come or move between zones.
func (InterPodAffinity) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{On: framework.NodeAdd | framework.NodeLabels | framework.NamespaceLabels | framework.Self},
		{On: framework.PodAdd | framework.PodLabels, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
			// Without namespace labels at hand a namespace selector counts as matching.
			return slices.ContainsFunc(pod.Affinity, func(t *state.Term) bool { return mayMatch(t, e) }) ||
				e.OldPod != nil && slices.ContainsFunc(pod.AntiAffinity, func(t *state.Term) bool { return t.Selector.Matches(labels.Set(e.OldPod.Labels)) })
		}},
		{On: framework.PodDelete, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
			gone := state.NewPodInfo(e.OldPod)
			return slices.ContainsFunc(pod.AntiAffinity, func(t *state.Term) bool { return t.Selector.Matches(labels.Set(e.OldPod.Labels)) }) ||
				slices.ContainsFunc(gone.AntiAffinity, func(t *state.Term) bool { return t.Selector.Matches(labels.Set(pod.Pod.Labels)) })
		}},
	}
}

func mayMatch(t *state.Term, e *framework.Event) bool {
	return e.NewPod != nil && t.Selector.Matches(labels.Set(e.NewPod.Labels)) &&
		(t.NamespaceSelector != nil || slices.Contains(t.Namespaces, e.NewPod.Namespace))
}
