// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

type labelSet = labels.Set

// selector holds the pods of a selectorKey, while chains use sets of them.
type selector struct {
	key    selectorKey
	parsed parsedSelector
	groups map[*group]bool
	// members are its sets, by the kind of elements.
	members map[memberKey]*members
}

// memberKey is the kind of elements that a set has for a pod: its addresses, or addresses with a named port, or those
// of them that are in blocks.
type memberKey struct {
	port   portName // name "" is none
	blocks string   // digest of spans, or ""
}

// members is a set in use.
type members struct {
	*Set
	key   memberKey
	spans []Span
	users int
}

// elements calls each for the elements of a pod in the set.
func (m *members) elements(p *pod, each func(Element)) {
	var port NamedPort
	if m.key.port.name != "" {
		i := slices.IndexFunc(p.Ports, func(n NamedPort) bool {
			return n.Name == m.key.port.name && n.Proto == m.key.port.proto
		})
		if i < 0 {
			return
		}
		port = p.Ports[i]
	}
	for _, a := range p.Addrs {
		if m.key.blocks != "" && !slices.ContainsFunc(m.spans, func(s Span) bool { return s.contains(a) }) {
			continue
		}
		each(Element{Addr: a, Proto: port.Proto, Port: port.Port})
	}
}

// blocks is a set of spans in use.
type blocks struct {
	*Set
	users int
}

func (sel *selector) matches(g *group) bool {
	if sel.key == everyPod {
		return true
	}
	if sel.key.namespace != "" {
		return g.namespace.name == sel.key.namespace && sel.parsed.pods.Matches(labelSet(g.labels))
	}
	return g.namespace.known && sel.parsed.namespaces.Matches(labelSet(g.namespace.labels)) &&
		sel.parsed.pods.Matches(labelSet(g.labels))
}

// match adds a group to a selector, or removes it, with the elements of its pods.
func (s *State) match(sel *selector, g *group) {
	has := sel.matches(g)
	if has == g.selectors[sel] {
		return
	}
	by := 1
	if has {
		g.selectors[sel] = true
		sel.groups[g] = true
	} else {
		by = -1
		delete(g.selectors, sel)
		delete(sel.groups, g)
	}
	for p := range g.pods {
		s.count(sel, p, by)
	}
}

// count adds a pod's elements to the selector's sets, or removes them.
func (s *State) count(sel *selector, p *pod, by int) {
	for _, m := range sel.members {
		m.elements(p, func(e Element) { s.countElement(m.Set, e, by) })
	}
}

func (s *State) countElement(set *Set, e Element, by int) {
	was := set.Elements[e]
	now := was + by
	if was == 0 != (now == 0) {
		s.log.element(set.Name, e, was > 0)
	}
	if now == 0 {
		delete(set.Elements, e)
	} else {
		set.Elements[e] = now
	}
}

// acquire finds or makes the set of kind mk for the pods of key, and counts its use.
func (s *State) acquire(key selectorKey, parsed parsedSelector, mk memberKey, spans []Span) string {
	sel := s.selectors[key]
	if sel == nil {
		sel = s.addSelector(key, parsed)
	}
	m := sel.members[mk]
	if m == nil {
		m = &members{
			key:   mk,
			spans: spans,
			Set:   &Set{Kind: Addresses, Meaning: key.String(), Elements: map[Element]int{}},
		}
		prefix := "pods-"
		if mk.port.name != "" {
			prefix = "ends-"
			m.Kind = Endpoints
			m.Meaning += ", " + protoName(mk.port.proto) + " " + mk.port.name
		}
		if mk.blocks != "" {
			m.Meaning += ", in " + spansText(spans)
		}
		m.Name = prefix + digest(m.Meaning)
		sel.members[mk] = m
		s.addSet(m.Set)
		for g := range sel.groups {
			for p := range g.pods {
				m.elements(p, func(e Element) { s.countElement(m.Set, e, 1) })
			}
		}
	}
	m.users++
	return m.Name
}

func (s *State) addSelector(key selectorKey, parsed parsedSelector) *selector {
	sel := &selector{
		key:     key,
		parsed:  parsed,
		groups:  map[*group]bool{},
		members: map[memberKey]*members{},
	}
	s.selectors[key] = sel
	if key.namespace != "" {
		n := s.namespaceOf(key.namespace)
		n.selectors[sel] = true
		for _, g := range n.groups {
			s.match(sel, g)
		}
		return sel
	}
	s.wide[sel] = true
	for _, n := range s.namespaces {
		for _, g := range n.groups {
			s.match(sel, g)
		}
	}
	return sel
}

// releaseSet undoes acquire.
func (s *State) releaseSet(key selectorKey, mk memberKey) {
	sel := s.selectors[key]
	m := sel.members[mk]
	if m.users--; m.users > 0 {
		return
	}
	delete(sel.members, mk)
	s.dropSet(m.Set)
	if len(sel.members) > 0 {
		return
	}
	delete(s.selectors, key)
	delete(s.wide, sel)
	for g := range sel.groups {
		delete(g.selectors, sel)
	}
	if key.namespace != "" {
		n := s.namespaceOf(key.namespace)
		delete(n.selectors, sel)
		s.forget(n)
	}
}

func (s *State) acquireBlocks(spans []Span) string {
	name := "nets-" + digest(spansText(spans))
	b := s.blocks[name]
	if b == nil {
		b = &blocks{Set: &Set{
			Name:    name,
			Kind:    Blocks,
			Meaning: "blocks",
			Spans:   spans,
		}}
		s.blocks[name] = b
		s.addSet(b.Set)
	}
	b.users++
	return name
}

func (s *State) releaseBlocks(name string) {
	b := s.blocks[name]
	if b.users--; b.users == 0 {
		delete(s.blocks, name)
		s.dropSet(b.Set)
	}
}

func (s *State) addSet(set *Set) {
	s.log.sets.note(set.Name, false)
	s.sets[set.Name] = set
}

func (s *State) dropSet(set *Set) {
	s.log.sets.note(set.Name, true)
	for e := range set.Elements {
		s.log.element(set.Name, e, true)
	}
	delete(s.sets, set.Name)
}

func spansText(spans []Span) string {
	out := make([]string, len(spans))
	for i, s := range spans {
		out[i] = s.String()
	}
	return strings.Join(out, " ")
}
