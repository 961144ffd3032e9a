// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"time"

	"keelson/scheduler/state"
)

// Advice is what others than plugins said about the nodes that fitted a pod when they were asked: HTTP extenders, which answer too slowly for
// the scheduling loop to wait for them.
type Advice struct {
	// Before are the refusals of the attempt by which the others were asked, and Looked how many nodes it looked at.
	Before []Refusal
	Looked int
	// Asked are the nodes that they were asked about, by name; no other node is chosen. Refused are their refusals.
	Asked   []string
	Refused map[string]*Status
	// Scores are theirs.
	Scores []AdvisedScores
	// Ignored is what went wrong and does not count, a sentence each.
	Ignored []string
	// FilterTook and ScoreTook are how long they took.
	FilterTook, ScoreTook time.Duration
	// Outdated is set by the attempt when a plugin refuses a node now that the advice is for.
	Outdated bool
}

// AdvisedScores are the scores of one adviser, by node, from 0 to MaxScore; a node without one has 0.
type AdvisedScores struct {
	By     Weighted
	Raw    map[string]int64 // as given
	Scores map[string]int64
}

// apply looks at the nodes among candidates that the advice is about.
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
		a.ScoredBy = append(a.ScoredBy, s.By)
		a.Raw, a.Scores = append(a.Raw, raw), append(a.Scores, scores)
	}
}
