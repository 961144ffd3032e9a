// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"maps"

	"keelson/scheduler/state"
)

// tally is a number by the value of a node label: shared sums plus what this filter counts differently.
type tally struct {
	key   string
	by    map[string]int64 // shared, read only
	delta map[string]int64
}

func (t *tally) at(value string) int64 {
	if t.delta == nil {
		return t.by[value]
	}
	return t.by[value] + t.delta[value]
}

// sums are the numbers by value. Read only.
func (t *tally) sums() map[string]int64 {
	if len(t.delta) == 0 {
		return t.by
	}
	all := maps.Clone(t.by)
	for v, n := range t.delta {
		all[v] += n
	}
	return all
}

func (t *tally) empty() bool {
	if len(t.delta) == 0 {
		return len(t.by) == 0
	}
	for v := range t.by {
		if t.at(v) != 0 {
			return false
		}
	}
	for v := range t.delta {
		if t.at(v) != 0 {
			return false
		}
	}
	return true
}

// plus returns a tally that counts n more on a node; the receiver stays as it is.
func (t tally) plus(node *state.NodeInfo, n int64) tally {
	value, ok := node.Node.Labels[t.key]
	if !ok || n == 0 {
		return t
	}
	delta := maps.Clone(t.delta)
	if delta == nil {
		delta = map[string]int64{}
	}
	delta[value] += n
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
