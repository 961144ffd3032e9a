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

// State remembers what each Service has in the table (its Part), so that Update can tell what a change adds and removes. It is not safe for
// concurrent use.
type State struct {
	node  Node
	name  string
	parts map[types.NamespacedName]*Part
	// chains and sets count how many Services use one.
	chains, sets map[string]int
	// shared counts elements that several Services may have: those of the set hairpin.
	shared map[Element]int
	// claims says which Service has an external frontend; waiting, which others ask for it.
	claims  map[string]types.NamespacedName
	waiting map[string][]types.NamespacedName
}

// Input is a Service with its slices. A nil Service is one that is gone.
type Input struct {
	Service *corev1.Service
	Slices  []*discoveryv1.EndpointSlice
}

// NewState returns the state of a table without Services.
func NewState(name string, node Node) *State {
	return &State{
		node: node, name: name, parts: map[types.NamespacedName]*Part{}, chains: map[string]int{}, sets: map[string]int{}, shared: map[Element]int{},
		claims: map[string]types.NamespacedName{}, waiting: map[string][]types.NamespacedName{},
	}
}

// Change is what became of some Services.
type Change struct {
	Delta nft.Delta
	// Before and After are the parts of the Services that changed; either may be nil.
	Before, After map[types.NamespacedName]*Part
	// Freed are Services that wait for a frontend which is free now: they are to be given to Update again.
	Freed []types.NamespacedName
}

// Table is the whole table of the Services given, and the state that goes with it. The older of two Services gets what both want.
func Table(name string, node Node, in map[types.NamespacedName]Input) (*nft.Table, *State, Change) {
	s := NewState(name, node)
	c := s.Update(in)
	t := Base(name, node)
	c.Delta.Apply(t)
	return t, s, c
}

// Update is what the change of some Services does to the table.
func (s *State) Update(in map[types.NamespacedName]Input) Change {
	c := Change{Before: map[types.NamespacedName]*Part{}, After: map[types.NamespacedName]*Part{}}
	names := slices.SortedFunc(maps.Keys(in), func(a, b types.NamespacedName) int { return order(a, b, in) })
	for _, n := range names { // what goes, before what comes: a frontend may move from one to the other
		if svc := in[n].Service; !served(svc) {
			c.Freed = append(c.Freed, s.release(n, nil)...)
		}
	}
	for _, n := range names {
		before := s.parts[n]
		after := partOf(in[n].Service, in[n].Slices, s.node, before, func(frontend string) string { return s.claim(frontend, n) })
		c.Freed = append(c.Freed, s.release(n, after.claims)...)
		c.Before[n], c.After[n] = before, after
	}
	for _, n := range names {
		s.remove(&c.Delta, c.Before[n])
	}
	for _, n := range names {
		s.add(&c.Delta, c.After[n])
		if in[n].Service == nil {
			delete(s.parts, n)
			continue
		}
		s.parts[n] = c.After[n]
	}
	c.Freed = slices.DeleteFunc(c.Freed, func(n types.NamespacedName) bool { return c.After[n] != nil && len(c.After[n].Refused) == 0 })
	return c
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
	x, y := in[a].Service, in[b].Service
	if x != nil && y != nil {
		if c := x.CreationTimestamp.Compare(y.CreationTimestamp.Time); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// claim takes an external frontend, unless another Service has it, whose name it returns.
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

// release gives up what the Service had and keeps no more, and returns who waits for it.
func (s *State) release(n types.NamespacedName, keep []string) []types.NamespacedName {
	before := s.parts[n]
	if before == nil {
		return nil
	}
	var freed []types.NamespacedName
	for _, frontend := range before.claims {
		if slices.Contains(keep, frontend) || s.claims[frontend] != n {
			continue
		}
		delete(s.claims, frontend)
		freed = append(freed, s.waiting[frontend]...)
		delete(s.waiting, frontend)
	}
	return freed
}

// remove takes a part out of the table.
func (s *State) remove(d *nft.Delta, p *Part) {
	if p == nil {
		return
	}
	for _, e := range p.Elements {
		if s.count(e, -1) == 0 {
			d.DropElement(e.Set, e.Key)
		}
	}
	for name := range p.Chains {
		if s.chains[name]--; s.chains[name] == 0 {
			delete(s.chains, name)
			d.DropChain(name)
		}
	}
	for name := range p.Sets {
		if s.sets[name]--; s.sets[name] == 0 {
			delete(s.sets, name)
			d.DropSet(name)
		}
	}
}

// add puts a part into the table.
func (s *State) add(d *nft.Delta, p *Part) {
	for _, e := range p.Elements {
		s.count(e, 1)
		d.PutElement(e.Set, e.Key, e.Value)
	}
	for name, c := range p.Chains {
		s.chains[name]++
		d.PutChain(c)
	}
	for name, set := range p.Sets {
		s.sets[name]++
		d.PutSet(set)
	}
}

// count counts how many parts have an element of a set that many may have the same of.
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

// Part is what the Service has in the table, nil when nothing.
func (s *State) Part(n types.NamespacedName) *Part { return s.parts[n] }

// All calls yield with every Service and its part.
func (s *State) All(yield func(types.NamespacedName, *Part) bool) {
	for n, p := range s.parts {
		if !yield(n, p) {
			return
		}
	}
}
