// SPDX-License-Identifier: Apache-2.0

package core

import (
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// canFilterAll reports whether filterAll can be used: each filter is NodeLocal or has FilterAll, no NodeNames excluded
// nodes, and the profile has no percentageOfNodesToScore below 100.
func (e *Engine) canFilterAll(a *framework.Attempt, nodes []*state.NodeInfo, nodeLocal int) bool {
	if len(nodes) != len(a.Snapshot.Nodes) || e.percentageOfNodesToScore > 0 && e.percentageOfNodesToScore < 100 {
		return false
	}
	for i := nodeLocal; i < len(a.Filters); i++ {
		if a.Filters[i].FilterAll == nil {
			return false
		}
	}
	return true
}

// filterAll filters all nodes of the snapshot. It uses the cached results of the pod's class.
func (e *Engine) filterAll(attempt *framework.Attempt, c *class) {
	nodes := attempt.Snapshot.Nodes
	c.updateStatuses(attempt)
	if c.refused == 0 && c.nodeLocalFilters == len(attempt.Filters) && !attempt.Snapshot.AnyNominated() {
		attempt.EvaluatedNodes = len(nodes)
		attempt.Feasible = nodes
		e.places = everyPlace(e.places, len(nodes))
		return
	}
	if c.refused == len(nodes) && !attempt.Snapshot.AnyNominated() && c.refuseAll(attempt) {
		e.places = e.places[:0]
		return
	}
	e.results = append(e.results[:0], c.status...)
	out := e.results
	for i := c.nodeLocalFilters; i < len(attempt.Filters); i++ {
		attempt.Filters[i].FilterAll(out) // canFilterAll has checked that each has it
	}
	if attempt.Snapshot.AnyNominated() {
		c.filterWithNominated(attempt, out)
	}
	e.places = e.places[:0]
	for place, n := range nodes {
		record(attempt, n, out[place])
		if out[place] == nil {
			e.places = append(e.places, int32(place)) // there are fewer nodes
		}
	}
	e.feasible = attempt.Feasible
}

// refuseAll records the refusals of all nodes, those of the last attempt where they are the same. It reports false if a
// filter could not decide.
func (c *class) refuseAll(a *framework.Attempt) bool {
	if c.refusals == nil {
		c.refusals = framework.NewRefusals(a.Snapshot.Nodes, c.status)
	}
	if c.refusals == nil {
		return false
	}
	c.refusals.Share(&a.Filtered)
	return true
}

// everyPlace returns the numbers from 0 to n-1. It reuses the memory of s.
func everyPlace(s []int32, n int) []int32 {
	if len(s) == n && s[0] == 0 && int(s[n-1]) == n-1 { // s is always ascending, possibly rotated
		return s
	}
	s = s[:0]
	for place := range n {
		s = append(s, int32(place)) // there are fewer nodes
	}
	return s
}

// sample reduces the feasible nodes to FeasibleNodesToFind of them, starting where the last sample ended, if a scorer
// must be called for each node. It reports whether it did.
func (e *Engine) sample(attempt *framework.Attempt) bool {
	enough := FeasibleNodesToFind(len(attempt.Snapshot.Nodes), 0)
	if len(attempt.Feasible) <= enough {
		return false
	}
	for i := range e.nodeScorers {
		if r := &e.nodeScorers[i]; r.Score == nil || r.NodeLocal || r.ScoreAll != nil {
			continue
		}
		start := e.next % len(attempt.Feasible)
		e.next = start + enough
		nodes := make([]*state.NodeInfo, enough)
		places := make([]int32, enough)
		for i := range enough {
			at := (start + i) % len(attempt.Feasible)
			nodes[i] = attempt.Feasible[at]
			places[i] = e.places[at]
		}
		attempt.Feasible = nodes
		e.places = places
		return true
	}
	return false
}

// scoreAll scores the feasible nodes, whose places are e.places. The result is that of scoreEach, but it uses the
// class's cached scores.
func (e *Engine) scoreAll(attempt *framework.Attempt, c *class) {
	n := len(e.places)
	c.updateScores(attempt, e.scorers, e.nodeScorers, e.places)
	everywhere := n == len(attempt.Snapshot.Nodes)
	// of returns the cached scores known in the order of Feasible.
	of := func(known []int64, kept [][]int64, i int) []int64 {
		if everywhere {
			return known
		}
		out := buffer(kept, i, n)
		for j, place := range e.places {
			out[j] = known[place]
		}
		return out
	}
	if everywhere && e.allKnown(c) {
		attempt.Totals = c.base
		attempt.Best = c.best()
	} else {
		attempt.Totals = buffer(e.scores, len(e.scorers), n)
		for j, place := range e.places {
			attempt.Totals[j] = c.base[place]
		}
	}
	for i, weighted := range e.scorers {
		scorer := &e.nodeScorers[i]
		if scorer.Score == nil {
			continue
		}
		var raw []int64
		begin := startOf(attempt)
		switch {
		case c.raw[i] != nil:
			raw = of(c.raw[i], e.raw, i)
		case scorer.ScoreAll != nil:
			raw = buffer(e.raw, i, n)
			scorer.ScoreAll(e.places, raw)
		default:
			raw = buffer(e.raw, i, n)
			for j, node := range attempt.Feasible {
				raw[j] = scorer.Score(node)
			}
		}
		scores := raw
		if scorer.Normalize != nil || c.raw[i] == nil { // else the score is part of the cached base
			scores = buffer(e.scores, i, n)
			copy(scores, raw)
			normalize(scorer, scores)
			for j, s := range scores {
				attempt.Totals[j] += s * weighted.Weight
			}
		}
		observeScores(attempt, weighted.Name, scorer, begin, n)
		addScored(attempt, weighted, scorer, raw, scores)
	}
}

// allKnown reports whether the total of every node is its cached base: no score depends on which other nodes are
// feasible.
func (e *Engine) allKnown(c *class) bool {
	for i := range e.nodeScorers {
		if scorer := &e.nodeScorers[i]; scorer.Score != nil && (scorer.Normalize != nil || c.raw[i] == nil) {
			return false
		}
	}
	return true
}
