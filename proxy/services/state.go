// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/network/nft"
)

// State holds the Part of each Service in the table, so that Update can compute the difference of a change. It is not
// safe for concurrent use.
type State struct {
	node  Node
	name  string
	parts map[types.NamespacedName]*Part
	// chains and sets count the Services that use each.
	chains, sets map[string]int
	// shared counts the Services of elements that several may have: those of the set hairpin.
	shared map[Element]int
	// claims holds the Service that owns each external frontend; waiting, those that want it too.
	claims  map[string]types.NamespacedName
	waiting map[string][]types.NamespacedName
}

// Input is a Service with its slices. A nil Service was deleted.
type Input struct {
	Service *corev1.Service
	Slices  []*discoveryv1.EndpointSlice
}

// NewState returns the state of a table without Services.
func NewState(name string, node Node) *State {
	return &State{
		node:    node,
		name:    name,
		parts:   map[types.NamespacedName]*Part{},
		chains:  map[string]int{},
		sets:    map[string]int{},
		shared:  map[Element]int{},
		claims:  map[string]types.NamespacedName{},
		waiting: map[string][]types.NamespacedName{},
	}
}

// Change is the result of an update of some Services.
type Change struct {
	Delta nft.Delta
	// Before and After are the parts of the Services that changed; either may be nil.
	Before, After map[types.NamespacedName]*Part
	// Freed are Services that waited for a frontend that is free now. The caller must call Update for them.
	Freed []types.NamespacedName
}

// Table returns the whole table of the Services, and its state. A frontend that two Services want goes to the older
// one.
func Table(name string, node Node, in map[types.NamespacedName]Input) (*nft.Table, *State, Change) {
	s := NewState(name, node)
	c := s.Update(in)
	t := Base(name, node)
	c.Delta.Apply(t)
	return t, s, c
}

// Update updates the state of some Services and returns the change of the table.
func (s *State) Update(in map[types.NamespacedName]Input) Change {
	change := Change{Before: map[types.NamespacedName]*Part{}, After: map[types.NamespacedName]*Part{}}
	names := slices.SortedFunc(maps.Keys(in), func(a, b types.NamespacedName) int { return order(a, b, in) })
	for _, n := range names { // removals before additions: a frontend may move from one Service to another
		if svc := in[n].Service; !served(svc) {
			change.Freed = append(change.Freed, s.release(n, nil)...)
		}
	}
	for _, n := range names {
		before := s.parts[n]
		after := partOf(in[n].Service, in[n].Slices, s.node, before, func(frontend string) string {
			return s.claim(frontend, n)
		})
		change.Freed = append(change.Freed, s.release(n, after.claims)...)
		change.Before[n] = before
		change.After[n] = after
	}
	for _, n := range names {
		s.remove(&change.Delta, change.Before[n])
	}
	for _, n := range names {
		s.add(&change.Delta, change.After[n])
		if in[n].Service == nil {
			delete(s.parts, n)
			continue
		}
		s.parts[n] = change.After[n]
	}
	change.Freed = slices.DeleteFunc(change.Freed, func(n types.NamespacedName) bool {
		return change.After[n] != nil && len(change.After[n].Refused) == 0
	})
	return change
}

// Join adds a later change.
func (c *Change) Join(more Change) {
	c.Delta.Join(&more.Delta)
	for n, before := range more.Before {
		if _, ok := c.Before[n]; !ok {
			c.Before[n] = before
		}
		c.After[n] = more.After[n]
	}
}

func order(a, b types.NamespacedName, in map[types.NamespacedName]Input) int {
	x := in[a].Service
	y := in[b].Service
	if x != nil && y != nil {
		if c := x.CreationTimestamp.Compare(y.CreationTimestamp.Time); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// claim takes an external frontend. If another Service owns it, it returns that Service.
func (s *State) claim(frontend string, n types.NamespacedName) string {
	by, ok := s.claims[frontend]
	if ok && by != n {
		if !slices.Contains(s.waiting[frontend], n) {
			s.waiting[frontend] = append(s.waiting[frontend], n)
		}
		return "Service " + by.String()
	}
	s.claims[frontend] = n
	return ""
}

// release releases the frontends that the Service does not keep, and returns the Services that wait for them.
func (s *State) release(namespacedName types.NamespacedName, keep []string) []types.NamespacedName {
	before := s.parts[namespacedName]
	if before == nil {
		return nil
	}
	var freed []types.NamespacedName
	kept := make(map[string]bool, len(keep))
	for _, frontend := range keep {
		kept[frontend] = true
	}
	for _, frontend := range before.claims {
		if kept[frontend] || s.claims[frontend] != namespacedName {
			continue
		}
		delete(s.claims, frontend)
		freed = append(freed, s.waiting[frontend]...)
		delete(s.waiting, frontend)
	}
	return freed
}

// remove removes a part from the table.
func (s *State) remove(delta *nft.Delta, part *Part) {
	if part == nil {
		return
	}
	for _, e := range part.Elements {
		if s.count(e, -1) == 0 {
			delta.DropElement(e.Set, e.Key)
		}
	}
	for name := range part.Chains {
		if s.chains[name]--; s.chains[name] == 0 {
			delete(s.chains, name)
			delta.DropChain(name)
		}
	}
	for name := range part.Sets {
		if s.sets[name]--; s.sets[name] == 0 {
			delete(s.sets, name)
			delta.DropSet(name)
		}
	}
}

// add adds a part to the table.
func (s *State) add(delta *nft.Delta, p *Part) {
	for _, e := range p.Elements {
		s.count(e, 1)
		delta.PutElement(e.Set, e.Key, e.Value)
	}
	for name, c := range p.Chains {
		s.chains[name]++
		delta.PutChain(c)
	}
	for name, set := range p.Sets {
		s.sets[name]++
		delta.PutSet(set)
	}
}

// count counts the parts with an element of the set hairpin, which several parts may have.
func (s *State) count(e Element, by int) int {
	if e.Set != "hairpin4" && e.Set != "hairpin6" {
		return 0
	}
	s.shared[e] += by
	n := s.shared[e]
	if n == 0 {
		delete(s.shared, e)
	}
	return n
}

// Part returns the Service's part; nil when it has none.
func (s *State) Part(n types.NamespacedName) *Part { return s.parts[n] }

// All calls yield with every Service and its part.
func (s *State) All(yield func(types.NamespacedName, *Part) bool) {
	for n, p := range s.parts {
		if !yield(n, p) {
			return
		}
	}
}
