// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"time"

	"keelson/scheduler/state"
)

// ExtenderResults holds the responses of the HTTP extenders about the feasible nodes of a pod. Extenders are too slow
// for the scheduling loop to wait for them. So an attempt with extenders has two halves: Engine.FindFeasible before the
// calls, and Engine.DecideWith, which takes the results, after them.
type ExtenderResults struct {
	// RefusedByPlugins are the nodes that plugins refused in the first half, and EvaluatedNodes is the number of nodes
	// that it filtered.
	RefusedByPlugins []Refusal
	EvaluatedNodes   int
	// SentNodes are the names of the nodes sent to the extenders; only one of these can be chosen. Refused are those
	// that an extender refused.
	SentNodes []string
	Refused   map[string]*Status
	// Scores has one entry for each extender that scores.
	Scores []ExtenderScores
	// IgnoredErrors describes, in a sentence each, errors that do not fail the attempt: filter errors of extenders with
	// ignorable: true, and all errors of scoring.
	IgnoredErrors []string
	// FilterTook and ScoreTook are the durations of the extenders' calls.
	FilterTook, ScoreTook time.Duration
	// Outdated: DecideWith found that a node in SentNodes is gone, or that a plugin refuses it now.
	Outdated bool
}

// ExtenderScores are the scores of one extender, by node name, from 0 to MaxScore; a node without a score has 0.
type ExtenderScores struct {
	By     Weighted
	Raw    map[string]int64 // as the extender sent them
	Scores map[string]int64
}

// filter filters those candidates again that were sent to the extenders, with the function check, and adds the
// extenders' refusals.
func (v *ExtenderResults) filter(attempt *Attempt, candidates []*state.NodeInfo, check func(*state.NodeInfo) *Status) {
	at := func(name string) *state.NodeInfo { return attempt.Snapshot.Node(name) }
	if len(candidates) != len(attempt.Snapshot.Nodes) { // NodeNames has excluded nodes
		few := make(map[string]*state.NodeInfo, len(candidates))
		for _, n := range candidates {
			few[n.Name] = n
		}
		at = func(name string) *state.NodeInfo { return few[name] }
	}
	for _, name := range v.SentNodes {
		n := at(name)
		if n == nil {
			v.Outdated = true
			continue
		}
		st := check(n)
		if v.Outdated = v.Outdated || st != nil; st == nil {
			st = v.Refused[name]
		}
		attempt.recordResult(n, st)
	}
	for _, r := range v.RefusedByPlugins {
		if n := attempt.Snapshot.Node(r.Node.Name); n != nil {
			attempt.Refused = append(attempt.Refused, Refusal{n, r.Status})
		}
	}
	attempt.EvaluatedNodes = max(attempt.EvaluatedNodes, v.EvaluatedNodes)
}

// score adds the extenders' scores to those of the plugins.
func (v *ExtenderResults) score(a *Attempt) {
	for _, s := range v.Scores {
		raw := make([]int64, len(a.Feasible))
		scores := make([]int64, len(a.Feasible))
		for i, n := range a.Feasible {
			raw[i] = s.Raw[n.Name]
			scores[i] = s.Scores[n.Name]
			a.Totals[i] += scores[i] * s.By.Weight
		}
		a.scored(s.By, &NodeScorer{}, raw, scores)
	}
}
