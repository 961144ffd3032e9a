// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"time"
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
