// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

type labelSet = labels.Set

// setTable is the sets that chains use, and the selectors whose pods are in them. A set exists while a chain uses it.
type setTable struct {
	namespaces namespaces
	log        *journal
	// selectors are those of the sets of pods; wide are those with a namespace selector.
	selectors map[selectorKey]*selector
	wide      map[*selector]bool
	members   map[string]*members
	constants map[string]*constant
	all       map[string]*Set // of members and constants
}

func newSetTable(namespaces namespaces, log *journal) *setTable {
	return &setTable{
		namespaces: namespaces,
		log:        log,
		selectors:  map[selectorKey]*selector{},
		wide:       map[*selector]bool{},
		members:    map[string]*members{},
		constants:  map[string]*constant{},
		all:        map[string]*Set{},
	}
}

// selector holds the pods of a selectorKey, while chains use sets of them.
type selector struct {
	key    selectorKey
	parsed parsedSelector
	groups map[*group]bool
	// members are the sets that its pods are in.
	members map[*members]bool
}

// members is a set in use: what each pod has that one of the selectors matches, its addresses, or its addresses with
// named ports.
type members struct {
	*Set
	selectors []*selector
	// named are the ports of a set of kind Endpoints.
	named map[portName]bool
	// spans, if there are any, limit the addresses.
	spans []Span
	users int
}

// elements calls each for the elements of a pod in the set.
func (m *members) elements(p *pod, each func(Element)) {
	for _, a := range p.Addrs {
		if len(m.spans) > 0 && !inSpans(m.spans, a) {
			continue
		}
		if m.named == nil {
			each(Element{Addr: a})
			continue
		}
		for _, port := range p.Ports {
			if m.named[portName{port.Proto, port.Name}] {
				each(Element{Addr: a, Proto: port.Proto, Port: port.Port})
			}
		}
	}
}

// constant is a set in use that does not depend on pods.
type constant struct {
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
func (t *setTable) match(sel *selector, g *group) {
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
		t.count(sel, p, by)
	}
}

// count adds a pod's elements to the selector's sets, or removes them.
func (t *setTable) count(sel *selector, p *pod, by int) {
	for m := range sel.members {
		m.elements(p, func(e Element) { t.countElement(m.Set, e, by) })
	}
}

func (t *setTable) countElement(set *Set, e Element, by int) {
	was := set.Elements[e]
	now := was + by
	if was == 0 != (now == 0) {
		t.log.element(set.Name, e, was > 0)
	}
	if now == 0 {
		delete(set.Elements, e)
	} else {
		set.Elements[e] = now
	}
}

// wantedSet describes a set of what pods have.
type wantedSet struct {
	keys  []selectorKey
	named []portName // of a set of kind Endpoints; none: kind Addresses
	spans []Span
}

// name identifies the set by its whole content; meaning describes it for people.
func (w *wantedSet) name() (name, meaning string) {
	texts := make([]string, len(w.keys))
	for i, k := range w.keys {
		texts[i] = k.String()
	}
	ports := make([]string, len(w.named))
	for i, n := range w.named {
		ports[i] = protoName(n.proto) + " " + n.name
	}
	prefix := "pods-"
	whole := strings.Join(texts, "; ")
	meaning = shortened(texts, "; ")
	if len(ports) > 0 {
		prefix = "ends-"
		whole += ", " + strings.Join(ports, " ")
		meaning += ", " + shortened(ports, " ")
	}
	if len(w.spans) > 0 {
		whole += ", in " + spansText(w.spans)
		meaning += ", in " + spansText(w.spans[:min(len(w.spans), mostInMeaning)])
	}
	return prefix + digest(whole), meaning
}

// mostInMeaning is how many parts the description of a set names.
const mostInMeaning = 8

// shortened joins the first texts and counts the others.
func shortened(texts []string, by string) string {
	more := len(texts) - mostInMeaning
	if more <= 0 {
		return strings.Join(texts, by)
	}
	return strings.Join(texts[:mostInMeaning], by) + fmt.Sprintf(" and %d more", more)
}

// acquire finds or makes a set, and counts its use. parsed has the selectors of its keys.
func (t *setTable) acquire(w wantedSet, parsed selectors) *members {
	name, meaning := w.name()
	m := t.members[name]
	if m != nil {
		m.users++
		return m
	}
	m = &members{
		spans: w.spans,
		users: 1,
		Set: &Set{
			Name:     name,
			Kind:     Addresses,
			Meaning:  meaning,
			Elements: map[Element]int{},
		},
	}
	if len(w.named) > 0 {
		m.Kind = Endpoints
		m.named = make(map[portName]bool, len(w.named))
		for _, n := range w.named {
			m.named[n] = true
		}
	}
	t.members[name] = m
	t.addSet(m.Set)
	for _, k := range w.keys {
		sel := t.selectors[k]
		if sel == nil {
			sel = t.addSelector(k, parsed[k])
		}
		m.selectors = append(m.selectors, sel)
		sel.members[m] = true
		for g := range sel.groups {
			for p := range g.pods {
				m.elements(p, func(e Element) { t.countElement(m.Set, e, 1) })
			}
		}
	}
	return m
}

// join matches a new group with the selectors.
func (t *setTable) join(g *group) {
	for sel := range g.namespace.selectors {
		t.match(sel, g)
	}
	for sel := range t.wide {
		t.match(sel, g)
	}
}

// matchAgain updates the matches of namespace selectors with the groups of a namespace.
func (t *setTable) matchAgain(n *namespace) {
	for sel := range t.wide {
		for _, g := range n.groups {
			t.match(sel, g)
		}
	}
}

func (t *setTable) addSelector(key selectorKey, parsed parsedSelector) *selector {
	sel := &selector{
		key:     key,
		parsed:  parsed,
		groups:  map[*group]bool{},
		members: map[*members]bool{},
	}
	t.selectors[key] = sel
	if key.namespace != "" {
		n := t.namespaces.of(key.namespace)
		n.selectors[sel] = true
		for _, g := range n.groups {
			t.match(sel, g)
		}
		return sel
	}
	t.wide[sel] = true
	for _, n := range t.namespaces {
		for _, g := range n.groups {
			t.match(sel, g)
		}
	}
	return sel
}

// releaseSet undoes acquire.
func (t *setTable) releaseSet(m *members) {
	if m.users--; m.users > 0 {
		return
	}
	delete(t.members, m.Name)
	t.dropSet(m.Set)
	for _, sel := range m.selectors {
		delete(sel.members, m)
		if len(sel.members) == 0 {
			t.dropSelector(sel)
		}
	}
}

func (t *setTable) dropSelector(sel *selector) {
	delete(t.selectors, sel.key)
	delete(t.wide, sel)
	for g := range sel.groups {
		delete(g.selectors, sel)
	}
	if sel.key.namespace != "" {
		n := t.namespaces.of(sel.key.namespace)
		delete(n.selectors, sel)
		t.namespaces.forget(n)
	}
}

// acquireConstant finds or makes a set that does not depend on pods, and counts its use.
func (t *setTable) acquireConstant(set *Set) string {
	c := t.constants[set.Name]
	if c == nil {
		c = &constant{Set: set}
		t.constants[set.Name] = c
		t.addSet(set)
	}
	c.users++
	return set.Name
}

func (t *setTable) releaseConstant(name string) {
	c := t.constants[name]
	if c.users--; c.users == 0 {
		delete(t.constants, name)
		t.dropSet(c.Set)
	}
}

func blocksSet(spans []Span) *Set {
	return &Set{
		Name:    "nets-" + digest(spansText(spans)),
		Kind:    Blocks,
		Meaning: "blocks",
		Spans:   spans,
	}
}

// portsSet is a set of the ports of one protocol.
func portsSet(ports []PortRange) *Set {
	return &Set{
		Name:    "ports-" + digest(fmt.Sprint(ports)),
		Kind:    Ports,
		Meaning: "ports",
		Ports:   ports,
	}
}

func (t *setTable) addSet(set *Set) {
	t.log.sets.note(set.Name, nil)
	t.all[set.Name] = set
}

func (t *setTable) dropSet(set *Set) {
	t.log.sets.note(set.Name, set)
	for e := range set.Elements {
		t.log.element(set.Name, e, true)
	}
	delete(t.all, set.Name)
}

func spansText(spans []Span) string {
	out := make([]string, len(spans))
	for i, s := range spans {
		out[i] = s.String()
	}
	return strings.Join(out, " ")
}

// byProtocol splits sorted ranges by their protocols.
func byProtocol(ports []PortRange) [][]PortRange {
	var out [][]PortRange
	for i, r := range ports {
		if i == 0 || r.Proto != ports[i-1].Proto {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], r)
	}
	return out
}
