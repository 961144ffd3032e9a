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
	key    string
	by     map[string]int64
	weight int64
}

type pulls []pull

func (p *pulls) add(key string, c *state.Counter, weight int64) {
	if by := c.By(key); len(by) > 0 {
		*p = append(*p, pull{key, by, weight})
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
		i := slices.IndexFunc(out, func(o pull) bool { return o.key == one.key })
		if i < 0 {
			out = append(out, pull{one.key, map[string]int64{}, 1})
			i = len(out) - 1
		}
		for v, n := range one.by {
			out[i].by[v] += n * one.weight
		}
	}
	return out
}

// Score may be negative; Normalize sees to that.
func (p pulls) Score(n *state.NodeInfo) int64 {
	var sum int64
	for i := range p {
		if v, ok := n.Node.Labels[p[i].key]; ok {
			sum += p[i].by[v] * p[i].weight
		}
	}
	return sum
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
