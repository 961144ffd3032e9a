// SPDX-License-Identifier: Apache-2.0

package core

import (
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// filterSent filters those candidates again that were sent to the extenders, with the function check, and adds the
// extenders' refusals.
func filterSent(
	v *framework.ExtenderResults, attempt *framework.Attempt, candidates []*state.NodeInfo,
	check func(*state.NodeInfo) *framework.Status,
) {
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
		record(attempt, n, st)
	}
	for _, r := range v.RefusedByPlugins {
		if n := attempt.Snapshot.Node(r.Node.Name); n != nil {
			attempt.Refused = append(attempt.Refused, framework.Refusal{Node: n, Status: r.Status})
		}
	}
	attempt.EvaluatedNodes = max(attempt.EvaluatedNodes, v.EvaluatedNodes)
}

// addExtenderScores adds the extenders' scores to those of the plugins.
func addExtenderScores(v *framework.ExtenderResults, a *framework.Attempt) {
	for _, s := range v.Scores {
		raw := make([]int64, len(a.Feasible))
		scores := make([]int64, len(a.Feasible))
		for i, n := range a.Feasible {
			raw[i] = s.Raw[n.Name]
			scores[i] = s.Scores[n.Name]
			a.Totals[i] += scores[i] * s.By.Weight
		}
		addScored(a, s.By, &framework.NodeScorer{}, raw, scores)
	}
}
