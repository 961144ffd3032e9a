// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// PreScore ranks by the constraints that may be broken, or else by the default selector.
func (p PodTopologySpread) PreScore(_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot, nodes []*state.NodeInfo) framework.NodeScorer {
	in, needAll := pod.Pod.Spec.TopologySpreadConstraints, true
	var byDefault labels.Selector
	if len(in) == 0 {
		if in, byDefault = p.defaults(pod.Pod); byDefault == nil {
			return nil
		}
		needAll = p.Defaults != nil
	}
	cs, err := parseConstraints(pod.Pod, in, corev1.ScheduleAnyway, byDefault)
	if err != nil {
		return nil
	}
	if !needAll { // a label that no node has tells nothing
		cs = slices.DeleteFunc(cs, func(c constraint) bool { return len(s.Domains(c.key)) == 0 })
	}
	if len(cs) == 0 {
		return nil
	}
	sc := &spreadScore{cs: make([]weighedConstraint, len(cs)), ignored: make([]bool, 0, len(nodes))}
	if needAll {
		sc.needs = cs
	}
	counted := nodes
	if lacks := func(n *state.NodeInfo) bool { return !hasKeys(n, cs) }; needAll && slices.ContainsFunc(nodes, lacks) {
		counted = slices.DeleteFunc(slices.Clone(nodes), lacks)
	}
	include := newInclusion(pod.Pod)
	quick := everyNodeCounts(cs, s)
	for i := range cs {
		w := &sc.cs[i]
		w.constraint, w.counter = cs[i], s.Count(cs[i].query())
		w.host = cs[i].key == corev1.LabelHostname
		w.everywhere = w.host && len(s.Domains(cs[i].key)) == len(s.Nodes)
		size := len(counted)
		switch {
		case w.host:
		case quick || !needAll && !cs[i].onlyMatching && !cs[i].onlyTolerated:
			w.by, size = w.counter.By(cs[i].key), distinct(counted, cs[i].key)
		default:
			need := cs
			if !needAll {
				need = cs[i : i+1]
			}
			_, t := countDomain(&cs[i], need, &include, w.counter, s)
			w.by, size = t.sums(), distinct(counted, cs[i].key)
		}
		w.weight = math.Log(float64(size + 2))
	}
	return sc
}

// distinct counts the values nodes have for a label. Having none is one more: as Kubernetes counts.
func distinct(nodes []*state.NodeInfo, key string) int {
	seen := map[string]struct{}{}
	for _, n := range nodes {
		seen[n.Node.Labels[key]] = struct{}{}
	}
	return len(seen)
}

type weighedConstraint struct {
	constraint
	counter *state.Counter
	by      map[string]int64
	host    bool
	// everywhere: all nodes have the label, each its own value.
	everywhere bool
	weight     float64
}

type spreadScore struct {
	cs      []weighedConstraint
	needs   []constraint // keys a node must have to count
	ignored []bool       // in the order of Score
}

// Score is the number of pods of the kind around a node, weighed: less is better.
func (s *spreadScore) Score(n *state.NodeInfo) int64 {
	if s.needs != nil && !hasKeys(n, s.needs) {
		s.ignored = append(s.ignored, true)
		return 0
	}
	s.ignored = append(s.ignored, false)
	var sum float64
	for i := range s.cs {
		c := &s.cs[i]
		var count int64
		if c.host && c.everywhere {
			count = c.counter.On(n.Name)
		} else {
			value, ok := n.Node.Labels[c.key]
			switch {
			case !ok:
				continue
			case c.host:
				count = c.counter.On(n.Name)
			default:
				count = c.by[value]
			}
		}
		sum += float64(count)*c.weight + float64(c.maxSkew-1)
	}
	return int64(math.Round(sum))
}

// Normalize turns few pods into a high score; nodes that do not count get none.
func (s *spreadScore) Normalize(scores []int64) {
	least, most := int64(math.MaxInt64), int64(0)
	for i, n := range scores {
		if !s.ignored[i] {
			least, most = min(least, n), max(most, n)
		}
	}
	for i, n := range scores {
		switch {
		case s.ignored[i]:
			scores[i] = 0
		case most == 0:
			scores[i] = framework.MaxScore
		default:
			scores[i] = framework.MaxScore * (most + least - n) / most
		}
	}
}
