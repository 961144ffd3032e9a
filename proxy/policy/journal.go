// SPDX-License-Identifier: Apache-2.0

package policy

import "net/netip"

// journal records the previous values of what has changed since the last Drain.
type journal struct {
	isolated [directions]was[netip.Addr, string]
	chains   was[string, *Chain] // nil: it did not exist
	sets     was[string, *Set]   // nil: it did not exist
	elements map[string]was[Element, bool]
}

// was holds the value of each key before its first change.
type was[K comparable, V any] map[K]V

func (w was[K, V]) note(k K, before V) {
	if _, ok := w[k]; !ok {
		w[k] = before
	}
}

func newJournal() *journal {
	j := &journal{chains: was[string, *Chain]{}, sets: was[string, *Set]{}, elements: map[string]was[Element, bool]{}}
	for d := range j.isolated {
		j.isolated[d] = was[netip.Addr, string]{}
	}
	return j
}

func (j *journal) element(set string, e Element, before bool) {
	if j.elements[set] == nil {
		j.elements[set] = was[Element, bool]{}
	}
	j.elements[set].note(e, before)
}
