// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"maps"

	"keelson/scheduler/state"
)

// topologyCounts is a number of pods by the value of a node label. It is the shared sums of the snapshot, minus the
// pods on excluded nodes, plus the adjustments of PreFilterExtensions.
type topologyCounts struct {
	*state.Sums
	excluded []int64         // by value ID; nil: none
	adjusted map[int32]int64 // by value ID; nil: none
}

// count returns the number for a value ID; 0 for -1, a node without the label.
func (t *topologyCounts) count(id int32) int64 {
	if id < 0 {
		return 0
	}
	n := t.Counts[id]
	if t.excluded != nil {
		n -= t.excluded[id]
	}
	if t.adjusted != nil {
		n += t.adjusted[id]
	}
	return n
}

// all returns the numbers by value ID. Read only.
func (t *topologyCounts) all() []int64 {
	if t.excluded == nil && t.adjusted == nil {
		return t.Counts
	}
	all := make([]int64, len(t.Counts))
	for id := range all {
		all[id] = t.count(int32(id)) // there are fewer nodes
	}
	return all
}

func (t *topologyCounts) empty() bool {
	if t.excluded == nil && t.adjusted == nil {
		return t.NonZero == 0
	}
	for id := range t.Counts {
		if t.count(int32(id)) != 0 { // there are fewer nodes
			return false
		}
	}
	return true
}

// with returns a copy that counts n more pods on a node.
func (t topologyCounts) with(node *state.NodeInfo, n int64) topologyCounts {
	id := t.ValueID(node)
	if id < 0 || n == 0 {
		return t
	}
	delta := maps.Clone(t.adjusted)
	if delta == nil {
		delta = map[int32]int64{}
	}
	delta[id] += n
	t.adjusted = delta
	return t
}

// countDifference returns the number of added pods that match, minus the number of removed ones.
func countDifference(added, removed []*state.PodInfo, match func(*state.PodInfo) bool) int64 {
	var n int64
	for _, p := range added {
		if match(p) {
			n++
		}
	}
	for _, p := range removed {
		if match(p) {
			n--
		}
	}
	return n
}
