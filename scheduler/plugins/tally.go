// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"maps"

	"keelson/scheduler/state"
)

// tally is a number by the value of a node label, which a column numbers: shared sums, less those of nodes that do not count, plus what this
// filter counts differently.
type tally struct {
	*state.Sums
	less  []int64         // nil: nothing
	delta map[int32]int64 // nil: nothing
}

// at is the number of a value; of none (-1) it is 0.
func (t *tally) at(id int32) int64 {
	if id < 0 {
		return 0
	}
	n := t.N[id]
	if t.less != nil {
		n -= t.less[id]
	}
	if t.delta != nil {
		n += t.delta[id]
	}
	return n
}

// sums are the numbers by value. Read only.
func (t *tally) sums() []int64 {
	if t.less == nil && t.delta == nil {
		return t.N
	}
	all := make([]int64, len(t.N))
	for id := range all {
		all[id] = t.at(int32(id)) //nolint:gosec // there are fewer nodes
	}
	return all
}

func (t *tally) empty() bool {
	if t.less == nil && t.delta == nil {
		return t.Some == 0
	}
	for id := range t.N {
		if t.at(int32(id)) != 0 { //nolint:gosec // there are fewer nodes
			return false
		}
	}
	return true
}

// plus returns a tally that counts n more on a node; the receiver stays as it is.
func (t tally) plus(node *state.NodeInfo, n int64) tally {
	id := t.On(node)
	if id < 0 || n == 0 {
		return t
	}
	delta := maps.Clone(t.delta)
	if delta == nil {
		delta = map[int32]int64{}
	}
	delta[id] += n
	t.delta = delta
	return t
}

// difference counts the pods for which match holds: added ones up, removed ones down.
func difference(added, removed []*state.PodInfo, match func(*state.PodInfo) bool) int64 {
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
