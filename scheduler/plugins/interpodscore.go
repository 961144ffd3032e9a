// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// PreScore has nothing to say when neither the pod nor any pod that matches it prefers anything.
func (a InterPodAffinity) PreScore(_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot, _ []*state.NodeInfo) framework.NodeScorer {
	var p pulls
	own := func(terms []state.WeightedTerm, sign int64) {
		for _, t := range terms {
			p.add(t.TopologyKey, s.Count(state.Query{Terms: []*state.Term{t.Term}}), sign*t.Weight)
		}
	}
	own(pod.PreferredAffinity, 1)
	own(pod.PreferredAntiAffinity, -1)
	others := func(k state.Kind, weight int64) {
		if !s.AnyHolders(k) {
			return
		}
		for _, g := range s.Holders(k, pod.Pod) {
			p.add(g.Term.TopologyKey, g.Counter, weight)
		}
	}
	if a.NotOthers && len(pod.PreferredAffinity)+len(pod.PreferredAntiAffinity) == 0 {
		return nil
	}
	others(state.HoldsPreferred, 1)
	others(state.HoldsPreferredAnti, -1)
	if a.HardWeight > 0 {
		others(state.HoldsAffinity, a.HardWeight)
	}
	if len(p) == 0 {
		return nil
	}
	return p.merge()
}

// pull is how much a node gains by having a value of a label.
type pull struct {
	*state.Sums
	weight int64
}

type pulls []pull

func (p *pulls) add(key string, c *state.Counter, weight int64) {
	if by := c.Sums(key); by.Some > 0 {
		*p = append(*p, pull{by, weight})
	}
}

// manyPulls is from where on adding up beforehand is cheaper than for each node.
const manyPulls = 8

func (p pulls) merge() pulls {
	if len(p) <= manyPulls {
		return p
	}
	var out pulls
	for _, one := range p {
		i := slices.IndexFunc(out, func(o pull) bool { return o.Column == one.Column })
		if i < 0 {
			out = append(out, pull{&state.Sums{Column: one.Column, N: make([]int64, len(one.N))}, 1})
			i = len(out) - 1
		}
		for id, n := range one.N {
			out[i].N[id] += n * one.weight
		}
	}
	return out
}

// Score may be negative; Normalize sees to that.
func (p pulls) Score(n *state.NodeInfo) int64 {
	var sum int64
	for i := range p {
		if id := p[i].On(n); id >= 0 {
			sum += p[i].N[id] * p[i].weight
		}
	}
	return sum
}

// ScoreAll is Score of the nodes at places.
func (p pulls) ScoreAll(places []int32, scores []int64) {
	clear(scores)
	for i := range p {
		of, by, weight := p[i].Of, p[i].N, p[i].weight
		for j, place := range places {
			if id := of[place]; id >= 0 {
				scores[j] += by[id] * weight
			}
		}
	}
}

// Normalize maps the least to 0 and the most to MaxScore, with the rounding of Kubernetes' floating point.
func (pulls) Normalize(scores []int64) {
	least, most := slices.Min(scores), slices.Max(scores)
	for i, s := range scores {
		scores[i] = 0
		if most > least {
			scores[i] = int64(framework.MaxScore * (float64(s-least) / float64(most-least)))
		}
	}
}
