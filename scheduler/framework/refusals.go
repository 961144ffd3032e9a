// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"slices"

	"keelson/api/decisions"
	"keelson/scheduler/state"
)

// ExplainedRefusals is how many refusals of a large cluster explain looks at: the first of Attempt.Refused.
const ExplainedRefusals = 256

// Refusals are what the attempts of a class of pods that fits on no node have in common, as long as no node changes in
// a way that matters to it. Receivers of what is in it must not modify it.
type Refusals struct {
	all       []Refusal
	reasons   map[string]int // nil: not counted yet
	refusedBy []string
	// Explained is what explain has made of the refusals; nil: nothing yet, or one of the first ExplainedRefusals nodes
	// has changed since.
	Explained *Explained
}

// Explained is what explain has to say about refused nodes.
type Explained struct {
	Refusals []decisions.Refusal
	Groups   []decisions.RefusalGroup
	Hints    []string
	Fixes    []string // Hints and Leaves, those with fewer steps first
	// Leaves is the hint that looks at pods on nodes; it is for the snapshot with this version.
	Leaves  string
	Version int64
}

// NewRefusals returns the refusals of all nodes; nil: a filter could not decide about one.
func NewRefusals(nodes []*state.NodeInfo, status []*Status) *Refusals {
	r := &Refusals{all: make([]Refusal, len(nodes))}
	for place, n := range nodes {
		if status[place].Code == Failed {
			return nil
		}
		r.all[place] = Refusal{n, status[place]}
	}
	return r
}

// Update takes the new state of the node at a place. It reports whether the node is still refused, and for the same
// reasons.
func (r *Refusals) Update(place int32, n *state.NodeInfo, st *Status) bool {
	was := r.all[place].Status
	if st == nil || st != was && (st.Code != was.Code || st.Plugin != was.Plugin ||
		!slices.Equal(st.Reasons, was.Reasons)) {
		return false
	}
	r.all[place].Node = n
	if place < ExplainedRefusals {
		r.Explained = nil
	}
	return true
}

// Share makes the refusals those of an attempt.
func (r *Refusals) Share(f *Filtered) {
	f.Refusals = r
	f.Refused = r.all
	f.EvaluatedNodes = len(r.all)
	if r.reasons == nil {
		r.reasons = f.countReasons()
		r.refusedBy = f.listRefusedBy()
	}
}
