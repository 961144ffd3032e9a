// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"hash/maphash"
	"maps"

	"k8s.io/apimachinery/pkg/labels"
)

// labelSet is one set of labels, shared by all objects of a resource that have it, mostly the pods of one workload. A
// list asks its selector once for each set, and reads no object that does not match. Objects without labels have none
// (nil).
type labelSet struct {
	labels labels.Set // shared with an object and never modified
	hash   uint64
	uses   int // number of objects with this set
}

// labelSets are the label sets of one resource's objects, by hash.
type labelSets map[uint64]*labelSet

var labelSeed = maphash.MakeSeed()

// hashLabels does not depend on the order of the labels.
func hashLabels(set labels.Set) uint64 {
	var sum uint64
	for name, value := range set {
		sum += maphash.Comparable(labelSeed, [2]string{name, value})
	}
	return sum
}

// take returns the set for an object that has these labels and had prev; release is called for a set that is no longer
// used.
func (s labelSets) take(set labels.Set, prev *labelSet) *labelSet {
	switch {
	case len(set) == 0:
		return nil
	case prev != nil && maps.Equal(prev.labels, set):
		prev.uses++
		return prev
	}
	hash := hashLabels(set)
	have := s[hash]
	if have != nil && maps.Equal(have.labels, set) {
		have.uses++
		return have
	}
	taken := &labelSet{labels: set, hash: hash, uses: 1}
	if have == nil { // else two sets have one hash, and the second is not shared
		s[hash] = taken
	}
	return taken
}

// release is called when an object no longer has the set.
func (s labelSets) release(set *labelSet) {
	if set == nil {
		return
	}
	set.uses--
	if set.uses == 0 && s[set.hash] == set {
		delete(s, set.hash)
	}
}

// maxRemembered limits the sets that a labelMatcher remembers: where most objects have labels of their own, it would
// not pay.
const maxRemembered = 1024

// labelMatcher reports which sets a selector matches, for one list.
type labelMatcher struct {
	selector  labels.Selector
	all       bool
	last      *labelSet // objects next to each other mostly have the same labels
	lastMatch bool
	known     map[*labelSet]bool
}

func newLabelMatcher(selector labels.Selector) *labelMatcher {
	m := &labelMatcher{selector: selector, all: selector.Empty()}
	if !m.all {
		m.lastMatch = selector.Matches(labels.Set(nil))
		m.known = map[*labelSet]bool{nil: m.lastMatch}
	}
	return m
}

func (m *labelMatcher) matches(set *labelSet) bool {
	if m.all {
		return true
	}
	if set == m.last {
		return m.lastMatch
	}
	match, ok := m.known[set]
	if !ok {
		match = m.selector.Matches(set.labels)
		if len(m.known) < maxRemembered {
			m.known[set] = match
		}
	}
	m.last = set
	m.lastMatch = match
	return match
}
