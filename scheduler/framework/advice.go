// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"time"

	"keelson/scheduler/state"
)

// Advice is what HTTP extenders said about the nodes that fitted a pod when they were asked. They answer too slowly for the scheduling loop
// to wait, so the attempt is made in two halves, Engine.Fit and Engine.DecideWith, and Advice is what comes between.
type Advice struct {
	// Before are the nodes that plugins refused before the extenders were asked, and Looked how many nodes were looked at then.
	Before []Refusal
	Looked int
	// Asked are the nodes that the extenders were asked about, by name: no other is chosen. Refused are those of them that they refused.
	Asked   []string
	Refused map[string]*Status
	// Scores are the extenders', by extender.
	Scores []AdvisedScores
	// Ignored are errors that do not count, a sentence each: of an extender with ignorable: true when it filters, of any when it scores.
	Ignored []string
	// FilterTook and ScoreTook are how long the extenders took.
	FilterTook, ScoreTook time.Duration
	// Outdated is set by DecideWith when a plugin now refuses a node that the extenders were asked about.
	Outdated bool
}

// AdvisedScores are the scores of one extender, by node, from 0 to MaxScore; a node without one has 0.
type AdvisedScores struct {
	By     Weighted
	Raw    map[string]int64 // as given
	Scores map[string]int64
}

// apply asks the filters again about the nodes among candidates that the extenders were asked about, and adds the extenders' refusals.
func (v *Advice) apply(a *Attempt, candidates []*state.NodeInfo, check func(*state.NodeInfo) *Status) {
	at := func(name string) *state.NodeInfo { return a.Snapshot.Node(name) }
	if len(candidates) != len(a.Snapshot.Nodes) { // a plugin knows the only nodes that can pass
		few := make(map[string]*state.NodeInfo, len(candidates))
		for _, n := range candidates {
			few[n.Name] = n
		}
		at = func(name string) *state.NodeInfo { return few[name] }
	}
	for _, name := range v.Asked {
		n := at(name)
		if n == nil {
			v.Outdated = true
			continue
		}
		st := check(n)
		if v.Outdated = v.Outdated || st != nil; st == nil {
			st = v.Refused[name]
		}
		a.looked(n, st)
	}
	for _, r := range v.Before {
		if n := a.Snapshot.Node(r.Node.Name); n != nil {
			a.Refused = append(a.Refused, Refusal{n, r.Status})
		}
	}
	a.Looked = max(a.Looked, v.Looked)
}

// score adds the scores to those of the plugins.
func (v *Advice) score(a *Attempt) {
	for _, s := range v.Scores {
		raw, scores := make([]int64, len(a.Feasible)), make([]int64, len(a.Feasible))
		for i, n := range a.Feasible {
			raw[i], scores[i] = s.Raw[n.Name], s.Scores[n.Name]
			a.Totals[i] += scores[i] * s.By.Weight
		}
		a.scored(s.By, nil, raw, scores)
	}
}
