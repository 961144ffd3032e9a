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
		cs = slices.DeleteFunc(cs, func(c constraint) bool { return s.Column(c.key).Labelled == 0 })
	}
	if len(cs) == 0 {
		return nil
	}
	sc := &spreadScore{cs: make([]weighedConstraint, len(cs)), needAll: needAll}
	include := newInclusion(pod.Pod)
	quick := everyNodeCounts(cs, s)
	for i := range cs {
		w := &sc.cs[i]
		counter := s.Count(cs[i].query())
		w.constraint, w.column, w.host = cs[i], s.Column(cs[i].key), cs[i].key == corev1.LabelHostname
		switch {
		case w.host:
			at := counter.Sums(state.Names)
			w.on, w.by = at.Column, at.N
		case quick || !needAll && !cs[i].onlyMatching && !cs[i].onlyTolerated:
			w.on, w.by = w.column, counter.Sums(cs[i].key).N
		default:
			need := cs
			if !needAll {
				need = cs[i : i+1]
			}
			_, _, t := countDomain(&cs[i], need, &include, counter, s)
			w.on, w.by = w.column, t.sums()
		}
	}
	sc.weigh(s, nodes)
	return sc
}

type weighedConstraint struct {
	constraint
	column *state.Column // of the label
	on     *state.Column // what pods are counted by: the label, or, where it is the host's name, nodes
	by     []int64
	host   bool
	weight float64
}

type spreadScore struct {
	cs      []weighedConstraint
	needAll bool   // a node without one of the labels does not count
	ignored []bool // in the order of Score; nil: none
	scored  int
}

// weigh gives constraints over more domains more weight, as far as the nodes that fit have them.
func (s *spreadScore) weigh(snap *state.Snapshot, nodes []*state.NodeInfo) {
	all := len(nodes) == len(snap.Nodes)
	if s.needAll && (!all || !s.everywhere(len(nodes))) && !allCount(s, nodes) {
		nodes, all = slices.DeleteFunc(slices.Clone(nodes), func(n *state.NodeInfo) bool { return !s.counts(n) }), false
	}
	for i := range s.cs {
		w := &s.cs[i]
		size := len(nodes)
		switch {
		case w.host:
		case all:
			if size = len(w.column.Values); w.column.Labelled < len(nodes) {
				size++
			}
		default:
			size = distinct(nodes, w.column)
		}
		w.weight = math.Log(float64(size + 2))
	}
}

func allCount(s *spreadScore, nodes []*state.NodeInfo) bool {
	for _, n := range nodes {
		if !s.counts(n) {
			return false
		}
	}
	return true
}

// everywhere reports whether all of n nodes have all labels.
func (s *spreadScore) everywhere(n int) bool {
	return !slices.ContainsFunc(s.cs, func(w weighedConstraint) bool { return w.column.Labelled != n })
}

func (s *spreadScore) counts(n *state.NodeInfo) bool {
	return !slices.ContainsFunc(s.cs, func(w weighedConstraint) bool { _, ok := n.Node.Labels[w.key]; return !ok })
}

// distinct counts the values nodes have for a label. Having none is one more: as Kubernetes counts.
func distinct(nodes []*state.NodeInfo, c *state.Column) int {
	seen, count := make([]bool, len(c.Values)+1), 0 // the last one is for those without
	for _, n := range nodes {
		id := c.On(n)
		if id < 0 {
			id = int32(len(c.Values)) //nolint:gosec // there are fewer nodes
		}
		if !seen[id] {
			seen[id] = true
			if count++; count == len(seen) {
				break
			}
		}
	}
	return count
}

// Score is the number of pods of the kind around a node, weighed: less is better.
func (s *spreadScore) Score(n *state.NodeInfo) int64 {
	s.scored++
	if s.needAll && !s.counts(n) {
		s.ignore(s.scored - 1)
		return 0
	}
	var sum float64
	for i := range s.cs {
		c := &s.cs[i]
		if c.column.On(n) >= 0 {
			sum += c.around(c.on.On(n))
		}
	}
	return int64(math.Round(sum))
}

func (c *weighedConstraint) around(id int32) float64 {
	return float64(c.by[id])*c.weight + float64(c.maxSkew-1)
}

func (s *spreadScore) ignore(at int) {
	for len(s.ignored) <= at {
		s.ignored = append(s.ignored, false)
	}
	s.ignored[at] = true
}

func (s *spreadScore) skips(at int) bool { return at < len(s.ignored) && s.ignored[at] }

// ScoreAll is Score of the nodes at places.
func (s *spreadScore) ScoreAll(places []int32, scores []int64) {
	for j, place := range places {
		var sum float64
		for i := range s.cs {
			c := &s.cs[i]
			if c.column.Of[place] >= 0 {
				sum += c.around(c.on.Of[place])
			} else if s.needAll {
				s.ignore(j)
			}
		}
		if scores[j] = int64(math.Round(sum)); s.skips(j) {
			scores[j] = 0
		}
	}
}

// Normalize turns few pods into a high score; nodes that do not count get none.
func (s *spreadScore) Normalize(scores []int64) {
	least, most := int64(math.MaxInt64), int64(0)
	for i, n := range scores {
		if !s.skips(i) {
			least, most = min(least, n), max(most, n)
		}
	}
	for i, n := range scores {
		switch {
		case s.skips(i):
			scores[i] = 0
		case most == 0:
			scores[i] = framework.MaxScore
		default:
			scores[i] = framework.MaxScore * (most + least - n) / most
		}
	}
}
