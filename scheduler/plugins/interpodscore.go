// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// PreScore returns nil when neither the pod nor an existing pod has a term that applies.
func (a InterPodAffinity) PreScore(
	_ *framework.CycleState, pod *state.PodInfo, snapshot *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	var p interPodScorer
	own := func(terms []state.WeightedTerm, sign int64) {
		for _, t := range terms {
			p.add(t.TopologyKey, snapshot.Count(state.Query{Terms: []*state.Term{t.Term}}), sign*t.Weight)
		}
	}
	own(pod.PreferredAffinity, 1)
	own(pod.PreferredAntiAffinity, -1)
	others := func(k state.TermKind, weight int64) {
		if !snapshot.HasTermGroups(k) {
			return
		}
		for _, g := range snapshot.MatchingTermGroups(k, pod.Pod) {
			p.add(g.Term.TopologyKey, g.Counter, weight)
		}
	}
	if a.IgnoreExistingPreferred && len(pod.PreferredAffinity)+len(pod.PreferredAntiAffinity) == 0 {
		return framework.NodeScorer{}
	}
	others(state.ExistingPreferred, 1)
	others(state.ExistingPreferredAnti, -1)
	if a.HardWeight > 0 {
		others(state.ExistingAffinity, a.HardWeight)
	}
	if len(p) == 0 {
		return framework.NodeScorer{}
	}
	p = p.merge()
	return framework.NodeScorer{Score: p.Score, Normalize: normalizeByRange, ScoreAll: p.ScoreAll}
}

// weightedSums is one term: a node scores weight times the sum for its label value.
type weightedSums struct {
	*state.Sums
	weight int64
}

// interPodScorer sums the terms of the pod and of existing pods.
type interPodScorer []weightedSums

func (p *interPodScorer) add(key string, c *state.Counter, weight int64) {
	if by := c.Sums(key); by.NonZero > 0 {
		*p = append(*p, weightedSums{by, weight})
	}
}

// mergeAbove: with more terms, summing the terms of each topology key first is cheaper than per node.
const mergeAbove = 8

func (p interPodScorer) merge() interPodScorer {
	if len(p) <= mergeAbove {
		return p
	}
	var out interPodScorer
	for _, one := range p {
		i := slices.IndexFunc(out, func(o weightedSums) bool { return o.LabelColumn == one.LabelColumn })
		if i < 0 {
			out = append(out, weightedSums{
				&state.Sums{LabelColumn: one.LabelColumn, Counts: make([]int64, len(one.Counts))}, 1,
			})
			i = len(out) - 1
		}
		for id, n := range one.Counts {
			out[i].Counts[id] += n * one.weight
		}
	}
	return out
}

// Score may be negative; normalizeByRange maps it to 0..MaxScore.
func (p interPodScorer) Score(n *state.NodeInfo) int64 {
	var sum int64
	for i := range p {
		if id := p[i].ValueID(n); id >= 0 {
			sum += p[i].Counts[id] * p[i].weight
		}
	}
	return sum
}

// ScoreAll is Score for the nodes at places.
func (p interPodScorer) ScoreAll(places []int32, scores []int64) {
	clear(scores)
	for i := range p {
		of := p[i].ValueIDs
		by := p[i].Counts
		weight := p[i].weight
		for j, place := range places {
			if id := of[place]; id >= 0 {
				scores[j] += by[id] * weight
			}
		}
	}
}

// normalizeByRange maps the least to 0 and the most to MaxScore, with the rounding of Kubernetes' floating point.
func normalizeByRange(scores []int64) {
	least := slices.Min(scores)
	most := slices.Max(scores)
	for i, s := range scores {
		scores[i] = 0
		if most > least {
			scores[i] = int64(framework.MaxScore * (float64(s-least) / float64(most-least)))
		}
	}
}
