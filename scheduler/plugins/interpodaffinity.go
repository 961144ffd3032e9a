// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// InterPodAffinity filters nodes by the required affinity and anti-affinity terms of the pod, and by the required
// anti-affinity terms of existing pods. It scores nodes by the preferred terms of both.
type InterPodAffinity struct {
	// HardWeight is hardPodAffinityWeight: the score weight of required affinity terms of existing pods that match the
	// pod.
	HardWeight int64
	// IgnoreExistingPreferred is ignorePreferredTermsOfExistingPods: a pod without preferred terms is not scored.
	IgnoreExistingPreferred bool
}

const interPodName = "InterPodAffinity"

// Plugin returns the descriptor.
func (p InterPodAffinity) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      interPodName,
		PreFilter: p.PreFilter,
		PreScore:  p.PreScore,
		Events:    p.events(),
	}
}

var (
	affinityUnmet = framework.NewStatus(interPodName, framework.Unresolvable,
		"node(s) didn't match pod affinity rules")
	antiAffinityUnmet = framework.NewStatus(interPodName, framework.Unschedulable,
		"node(s) didn't match pod anti-affinity rules")
	existingAntiAffinityUnmet = framework.NewStatus(interPodName, framework.Unschedulable,
		"node(s) didn't satisfy existing pods anti-affinity rules")
)

// PreFilter returns nil when neither the pod nor an existing pod has a required term that applies.
func (InterPodAffinity) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, snapshot *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	f := &interPodFilter{pod: pod, snap: snapshot, ns: snapshot.Namespaces}
	if snapshot.HasTermGroups(state.ExistingAntiAffinity) {
		for _, g := range snapshot.MatchingTermGroups(state.ExistingAntiAffinity, pod.Pod) {
			f.addExistingAntiAffinity(g.Sums(g.Term.TopologyKey))
		}
	}
	for _, t := range pod.AntiAffinity {
		c := snapshot.Count(state.Query{Terms: []*state.Term{t}})
		f.antiAffinity = append(f.antiAffinity, topologyCounts{Sums: c.Sums(t.TopologyKey)})
	}
	if len(pod.Affinity) > 0 {
		q := state.Query{Terms: pod.Affinity}
		c := snapshot.Count(q)
		for _, t := range pod.Affinity {
			f.affinity = append(f.affinity, topologyCounts{Sums: c.Sums(t.TopologyKey)})
		}
		f.matchesItself = q.Matches(pod.Pod, snapshot.Namespaces[pod.Pod.Namespace])
	}
	if len(f.affinity)+len(f.antiAffinity)+len(f.existingAntiAffinity) == 0 {
		return framework.NodeFilter{}, nil
	}
	f.setFirstOfGroup()
	return f.described(), nil
}

func (f *interPodFilter) described() framework.NodeFilter {
	return framework.NodeFilter{Filter: f.Filter, FilterAll: f.FilterAll, Adjust: f.Adjust, Explain: f.Explain}
}

// interPodFilter has the counts of the pods that match the required terms, for one pod.
type interPodFilter struct {
	pod  *state.PodInfo
	snap *state.Snapshot
	ns   map[string]labels.Set
	// affinity counts the pods that match all affinity terms, by the topology key of each term. antiAffinity counts the
	// pods that match an anti-affinity term. existingAntiAffinity counts the pods whose own anti-affinity terms match
	// this pod.
	affinity, antiAffinity, existingAntiAffinity []topologyCounts
	// matchesItself: the pod matches its own affinity terms. firstOfGroup: besides, no pod matches them yet, so any
	// node with the labels fits.
	matchesItself, firstOfGroup bool
}

// addExistingAntiAffinity adds the counts of one term. Counts of terms with the same topology key are summed.
func (f *interPodFilter) addExistingAntiAffinity(sums *state.Sums) {
	i := slices.IndexFunc(f.existingAntiAffinity, func(o topologyCounts) bool {
		return o.LabelColumn == sums.LabelColumn
	})
	if i < 0 {
		f.existingAntiAffinity = append(f.existingAntiAffinity, topologyCounts{Sums: sums})
		return
	}
	all := &state.Sums{LabelColumn: sums.LabelColumn, Counts: slices.Clone(f.existingAntiAffinity[i].Counts)}
	for id, n := range sums.Counts {
		all.Counts[id] += n
	}
	for _, n := range all.Counts {
		if n != 0 {
			all.NonZero++
		}
	}
	f.existingAntiAffinity[i].Sums = all
}

// setFirstOfGroup sets firstOfGroup from the counts.
func (f *interPodFilter) setFirstOfGroup() {
	f.firstOfGroup = f.matchesItself
	for i := range f.affinity {
		f.firstOfGroup = f.firstOfGroup && f.affinity[i].empty()
	}
}

func (f *interPodFilter) Filter(info *state.NodeInfo) *framework.Status {
	near := true
	for i := range f.affinity {
		id := f.affinity[i].ValueID(info)
		if id < 0 {
			return affinityUnmet
		}
		near = near && f.affinity[i].count(id) > 0
	}
	if !near && !f.firstOfGroup {
		return affinityUnmet
	}
	for i := range f.antiAffinity {
		if f.antiAffinity[i].count(f.antiAffinity[i].ValueID(info)) > 0 {
			return antiAffinityUnmet
		}
	}
	for i := range f.existingAntiAffinity {
		if f.existingAntiAffinity[i].count(f.existingAntiAffinity[i].ValueID(info)) > 0 {
			return existingAntiAffinityUnmet
		}
	}
	return nil
}

// FilterAll is Filter for all nodes.
func (f *interPodFilter) FilterAll(out []*framework.Status) {
	for i := range f.affinity {
		t := &f.affinity[i]
		for place, id := range t.ValueIDs {
			if out[place] == nil && (id < 0 || !f.firstOfGroup && t.count(id) <= 0) {
				out[place] = affinityUnmet
			}
		}
	}
	refuse := func(ts []topologyCounts, st *framework.Status) {
		for i := range ts {
			t := &ts[i]
			if t.adjusted == nil && t.excluded == nil && t.NonZero == 0 {
				continue
			}
			for place, id := range t.ValueIDs {
				if id >= 0 && out[place] == nil && t.count(id) > 0 {
					out[place] = st
				}
			}
		}
	}
	refuse(f.antiAffinity, antiAffinityUnmet)
	refuse(f.existingAntiAffinity, existingAntiAffinityUnmet)
}

// Adjust returns the filter after pods were added to and removed from one node.
func (f *interPodFilter) Adjust(info *state.NodeInfo, added, removed []*state.PodInfo) framework.NodeFilter {
	c := *f
	c.affinity = slices.Clone(f.affinity)
	c.antiAffinity = slices.Clone(f.antiAffinity)
	c.existingAntiAffinity = slices.Clone(f.existingAntiAffinity)
	matches := func(q state.Query) func(*state.PodInfo) bool {
		return func(p *state.PodInfo) bool { return q.Matches(p.Pod, f.ns[p.Pod.Namespace]) }
	}
	if len(c.affinity) > 0 {
		diff := countDifference(added, removed, matches(state.Query{Terms: f.pod.Affinity}))
		for i := range c.affinity {
			c.affinity[i] = c.affinity[i].with(info, diff)
		}
	}
	for i, t := range f.pod.AntiAffinity {
		c.antiAffinity[i] = c.antiAffinity[i].with(info,
			countDifference(added, removed, matches(state.Query{Terms: []*state.Term{t}})))
	}
	c.adjustExistingAntiAffinity(info, added, 1)
	c.adjustExistingAntiAffinity(info, removed, -1)
	c.setFirstOfGroup()
	return c.described()
}

func (f *interPodFilter) adjustExistingAntiAffinity(info *state.NodeInfo, pods []*state.PodInfo, sign int64) {
	for _, p := range pods {
		for _, t := range p.AntiAffinity {
			if !t.Matches(f.pod.Pod, f.ns[f.pod.Pod.Namespace]) {
				continue
			}
			col := f.snap.Column(t.TopologyKey)
			i := slices.IndexFunc(f.existingAntiAffinity, func(o topologyCounts) bool { return o.LabelColumn == col })
			if i < 0 {
				f.existingAntiAffinity = append(f.existingAntiAffinity, topologyCounts{
					Sums: &state.Sums{LabelColumn: col, Counts: make([]int64, len(col.Values))},
				})
				i = len(f.existingAntiAffinity) - 1
			}
			f.existingAntiAffinity[i] = f.existingAntiAffinity[i].with(info, sign)
		}
	}
}

// events names what may help: pods that are added, deleted or change labels, and nodes that are added or
// change labels.
func (InterPodAffinity) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{Kinds: framework.NodeAdd | framework.NodeLabels | framework.NamespaceLabels | framework.UnscheduledPodUpdate},
		{
			Kinds: framework.AssignedPodAdd | framework.AssignedPodLabels,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				// The labels of namespaces are not known here, so a namespace selector counts as matching.
				return slices.ContainsFunc(pod.Affinity, func(t *state.Term) bool { return mayMatch(t, e) }) ||
					e.OldPod != nil && slices.ContainsFunc(pod.AntiAffinity, func(t *state.Term) bool {
						return t.Selector.Matches(labels.Set(e.OldPod.Labels))
					})
			},
		},
		{
			Kinds: framework.AssignedPodDelete,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				gone := state.NewPodInfo(e.OldPod)
				return slices.ContainsFunc(pod.AntiAffinity, func(t *state.Term) bool {
					return t.Selector.Matches(labels.Set(e.OldPod.Labels))
				}) ||
					slices.ContainsFunc(gone.AntiAffinity, func(t *state.Term) bool {
						return t.Selector.Matches(labels.Set(pod.Pod.Labels))
					})
			},
		},
	}
}

func mayMatch(t *state.Term, e *framework.Event) bool {
	return e.NewPod != nil && t.Selector.Matches(labels.Set(e.NewPod.Labels)) &&
		(t.NamespaceSelector != nil || slices.Contains(t.Namespaces, e.NewPod.Namespace))
}
