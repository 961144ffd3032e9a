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

// PreScore returns the scorer for the ScheduleAnyway constraints of the pod, or else for the default constraints.
func (p PodTopologySpread) PreScore(
	_ *framework.CycleState, pod *state.PodInfo, snapshot *state.Snapshot, nodes []*state.NodeInfo,
) framework.NodeScorer {
	in := pod.Pod.Spec.TopologySpreadConstraints
	needAll := true
	var byDefault labels.Selector
	if len(in) == 0 {
		if in, byDefault = p.defaults(pod.Pod); byDefault == nil {
			return framework.NodeScorer{}
		}
		needAll = p.Defaults != nil
	}
	cs, err := parseConstraints(pod.Pod, in, corev1.ScheduleAnyway, byDefault)
	if err != nil {
		return framework.NodeScorer{}
	}
	if !needAll { // a label that no node has makes no difference
		cs = slices.DeleteFunc(cs, func(c constraint) bool { return snapshot.Column(c.key).Labelled == 0 })
	}
	if len(cs) == 0 {
		return framework.NodeScorer{}
	}
	sc := &spreadScorer{constraints: make([]weightedConstraint, len(cs)), requireAllLabels: needAll}
	include := newInclusion(pod.Pod)
	quick := allNodesCount(cs, snapshot)
	for i := range cs {
		w := &sc.constraints[i]
		counter := snapshot.Count(cs[i].query())
		w.constraint = cs[i]
		w.label = snapshot.Column(cs[i].key)
		w.host = cs[i].key == corev1.LabelHostname
		switch {
		case w.host:
			at := counter.Sums(state.NodeNames)
			w.countedBy = at.LabelColumn
			w.counts = at.Counts
		case quick || !needAll && !cs[i].honorAffinity && !cs[i].honorTaints:
			w.countedBy = w.label
			w.counts = counter.Sums(cs[i].key).Counts
		default:
			need := cs
			if !needAll {
				need = cs[i : i+1]
			}
			_, _, t := countIncluded(&cs[i], need, &include, counter, snapshot)
			w.countedBy = w.label
			w.counts = t.all()
		}
	}
	sc.setWeights(snapshot, nodes)
	return framework.NodeScorer{Score: sc.Score, Normalize: sc.Normalize, ScoreAll: sc.ScoreAll}
}

type weightedConstraint struct {
	constraint
	label     *state.LabelColumn // the topology key's values
	countedBy *state.LabelColumn // the domains of counts: label, or for kubernetes.io/hostname the nodes
	counts    []int64
	host      bool
	weight    float64
}

type spreadScorer struct {
	constraints      []weightedConstraint
	requireAllLabels bool   // nodes without all of the labels score 0
	ignored          []bool // such nodes, in the order of the calls of Score; nil: none
	scored           int
}

// setWeights sets the weight of each constraint: it grows with the number of its domains among the nodes that fit.
func (s *spreadScorer) setWeights(snap *state.Snapshot, nodes []*state.NodeInfo) {
	all := len(nodes) == len(snap.Nodes)
	if s.requireAllLabels && (!all || !s.allNodesHaveLabels(len(nodes))) && !allHaveLabels(s, nodes) {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *state.NodeInfo) bool { return !s.hasAllLabels(n) })
		all = false
	}
	for i := range s.constraints {
		constraint := &s.constraints[i]
		size := len(nodes)
		switch {
		case constraint.host:
		case all:
			if size = len(constraint.label.Values); constraint.label.Labelled < len(nodes) {
				size++
			}
		default:
			size = distinctValues(nodes, constraint.label)
		}
		constraint.weight = math.Log(float64(size + 2))
	}
}

func allHaveLabels(s *spreadScorer, nodes []*state.NodeInfo) bool {
	for _, n := range nodes {
		if !s.hasAllLabels(n) {
			return false
		}
	}
	return true
}

// allNodesHaveLabels reports whether each of the n nodes has all labels.
func (s *spreadScorer) allNodesHaveLabels(n int) bool {
	return !slices.ContainsFunc(s.constraints, func(w weightedConstraint) bool { return w.label.Labelled != n })
}

func (s *spreadScorer) hasAllLabels(n *state.NodeInfo) bool {
	return !slices.ContainsFunc(s.constraints, func(w weightedConstraint) bool {
		_, ok := n.Node.Labels[w.key]
		return !ok
	})
}

// distinctValues counts the values that nodes have for a label. A missing label counts as one more value, as in
// kube-scheduler.
func distinctValues(nodes []*state.NodeInfo, c *state.LabelColumn) int {
	seen := make([]bool, len(c.Values)+1)
	count := 0 // the last one is for those without
	for _, n := range nodes {
		id := c.ValueID(n)
		if id < 0 {
			id = int32(len(c.Values)) // there are fewer nodes
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

// Score is the weighted number of matching pods in the node's domains. Less is better; Normalize inverts it.
func (s *spreadScorer) Score(n *state.NodeInfo) int64 {
	s.scored++
	if s.requireAllLabels && !s.hasAllLabels(n) {
		s.ignore(s.scored - 1)
		return 0
	}
	var sum float64
	for i := range s.constraints {
		c := &s.constraints[i]
		if c.label.ValueID(n) >= 0 {
			sum += c.score(c.countedBy.ValueID(n))
		}
	}
	return int64(math.Round(sum))
}

func (c *weightedConstraint) score(id int32) float64 {
	return float64(c.counts[id])*c.weight + float64(c.maxSkew-1)
}

func (s *spreadScorer) ignore(at int) {
	for len(s.ignored) <= at {
		s.ignored = append(s.ignored, false)
	}
	s.ignored[at] = true
}

func (s *spreadScorer) ignores(at int) bool { return at < len(s.ignored) && s.ignored[at] }

// ScoreAll is Score for the nodes at places.
func (s *spreadScorer) ScoreAll(places []int32, scores []int64) {
	for j, place := range places {
		var sum float64
		for i := range s.constraints {
			c := &s.constraints[i]
			if c.label.ValueIDs[place] >= 0 {
				sum += c.score(c.countedBy.ValueIDs[place])
			} else if s.requireAllLabels {
				s.ignore(j)
			}
		}
		if scores[j] = int64(math.Round(sum)); s.ignores(j) {
			scores[j] = 0
		}
	}
}

// Normalize gives nodes with few pods a high score, and ignored nodes 0.
func (s *spreadScorer) Normalize(scores []int64) {
	least := int64(math.MaxInt64)
	most := int64(0)
	for i, n := range scores {
		if !s.ignores(i) {
			least = min(least, n)
			most = max(most, n)
		}
	}
	for i, n := range scores {
		switch {
		case s.ignores(i):
			scores[i] = 0
		case most == 0:
			scores[i] = framework.MaxScore
		default:
			scores[i] = framework.MaxScore * (most + least - n) / most
		}
	}
}
