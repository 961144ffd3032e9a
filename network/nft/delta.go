// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"maps"
	"slices"
)

// Delta is the difference between two tables. The zero value means no difference.
type Delta struct {
	// Chains are new, or have new rules; their hooks never change.
	Chains map[string]Chain
	// DropChains are chains to delete. No remaining rule refers to them.
	DropChains map[string]bool
	// Sets are new.
	Sets     map[string]Set
	DropSets map[string]bool
	// Put are new elements and elements with a new value, Drop those to delete, by set and key.
	Put  map[string]map[string]string
	Drop map[string]map[string]bool
	// replaced are the elements of Put that exist with another value; rewritten are the Chains that exist with other
	// rules.
	replaced  map[string][]string
	rewritten map[string]bool
}

// Empty reports whether there is no difference.
func (d *Delta) Empty() bool {
	return len(d.Chains) == 0 && len(d.DropChains) == 0 && len(d.Sets) == 0 && len(d.DropSets) == 0 && d.Size() == 0
}

// Size returns the number of elements that it adds, changes and deletes.
func (d *Delta) Size() int {
	n := 0
	for _, m := range d.Put {
		n += len(m)
	}
	for _, m := range d.Drop {
		n += len(m)
	}
	return n
}

// PutElement adds or changes an element.
func (d *Delta) PutElement(set, key, value string) {
	if d.Put == nil {
		d.Put = map[string]map[string]string{}
	}
	if d.Put[set] == nil {
		d.Put[set] = map[string]string{}
	}
	d.Put[set][key] = value
	delete(d.Drop[set], key)
}

// DropElement deletes an element.
func (d *Delta) DropElement(set, key string) {
	if d.Drop == nil {
		d.Drop = map[string]map[string]bool{}
	}
	if d.Drop[set] == nil {
		d.Drop[set] = map[string]bool{}
	}
	d.Drop[set][key] = true
	delete(d.Put[set], key)
}

// PutChain adds a chain or replaces its rules.
func (d *Delta) PutChain(c Chain) {
	if d.Chains == nil {
		d.Chains = map[string]Chain{}
	}
	d.Chains[c.Name] = c
	delete(d.DropChains, c.Name)
}

// DropChain deletes a chain.
func (d *Delta) DropChain(name string) {
	if d.DropChains == nil {
		d.DropChains = map[string]bool{}
	}
	d.DropChains[name] = true
	delete(d.Chains, name)
}

// PutSet adds a set.
func (d *Delta) PutSet(s Set) {
	if d.Sets == nil {
		d.Sets = map[string]Set{}
	}
	d.Sets[s.Name] = s
	delete(d.DropSets, s.Name)
}

// DropSet deletes a set with all its elements.
func (d *Delta) DropSet(name string) {
	if d.DropSets == nil {
		d.DropSets = map[string]bool{}
	}
	d.DropSets[name] = true
	delete(d.Sets, name)
}

// Join adds a later difference.
func (d *Delta) Join(more *Delta) {
	for set, m := range more.Drop {
		for k := range m {
			d.DropElement(set, k)
		}
	}
	for set, m := range more.Put {
		for k, v := range m {
			d.PutElement(set, k, v)
		}
	}
	for name := range more.DropChains {
		d.DropChain(name)
	}
	for name := range more.DropSets {
		d.DropSet(name)
	}
	for _, c := range more.Chains {
		d.PutChain(c)
	}
	for _, s := range more.Sets {
		d.PutSet(s)
	}
}

// Diff returns the difference between have and want. whole: the table must be replaced, because a set or a base chain
// has other properties.
func Diff(have, want *Table) (delta Delta, whole bool) {
	for name, s := range want.Sets {
		old, ok := have.Sets[name]
		if ok && !old.same(s) {
			return delta, true
		}
		if !ok {
			delta.PutSet(s)
		}
		diffElements(&delta, name, have.Elements[name], want.Elements[name])
	}
	for name := range have.Sets {
		if _, ok := want.Sets[name]; !ok {
			delta.DropSet(name)
		}
	}
	for name, c := range want.Chains {
		old, ok := have.Chains[name]
		if ok && (old.Hook != c.Hook || old.Priority != c.Priority || old.Type != c.Type) {
			return delta, true
		}
		if !ok || !sameRules(old.Rules, c.Rules) {
			delta.PutChain(c)
			delta.rewrite(name, ok)
		}
	}
	for name := range have.Chains {
		if _, ok := want.Chains[name]; !ok {
			delta.DropChain(name)
		}
	}
	return delta, false
}

func diffElements(delta *Delta, set string, have, want map[string]string) {
	for k, v := range want {
		old, ok := have[k]
		if ok && old == v {
			continue
		}
		delta.PutElement(set, k, v)
		if ok {
			delta.replace(set, k)
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			delta.DropElement(set, k)
		}
	}
}

func (d *Delta) replace(set, key string) {
	if d.replaced == nil {
		d.replaced = map[string][]string{}
	}
	d.replaced[set] = append(d.replaced[set], key)
}

// rewrite notes that a chain of Chains exists.
func (d *Delta) rewrite(chain string, exists bool) {
	if !exists {
		return
	}
	if d.rewritten == nil {
		d.rewritten = map[string]bool{}
	}
	d.rewritten[chain] = true
}

// effective returns the part of d that changes table, with replaced and rewritten set.
func (d *Delta) effective(table *Table) *Delta {
	out := &Delta{}
	for name, s := range d.Sets {
		if _, ok := table.Sets[name]; !ok {
			out.PutSet(s)
		}
	}
	for name, c := range d.Chains {
		if old, ok := table.Chains[name]; !ok || !sameRules(old.Rules, c.Rules) {
			out.PutChain(c)
			out.rewrite(name, ok)
		}
	}
	for name := range d.DropChains {
		if _, ok := table.Chains[name]; ok {
			out.DropChain(name)
		}
	}
	for name := range d.DropSets {
		if _, ok := table.Sets[name]; ok {
			out.DropSet(name)
		}
	}
	for set, m := range d.Put {
		have := table.Elements[set]
		for k, v := range m {
			old, ok := have[k]
			if ok && old == v {
				continue
			}
			out.PutElement(set, k, v)
			if ok {
				out.replace(set, k)
			}
		}
	}
	for set, m := range d.Drop {
		have := table.Elements[set]
		for k := range m {
			if _, ok := have[k]; ok && !d.DropSets[set] {
				out.DropElement(set, k)
			}
		}
	}
	return out
}

func (s Set) same(o Set) bool {
	return s.Verdicts == o.Verdicts && s.Interval == o.Interval && s.Timeout == o.Timeout && s.Size == o.Size &&
		slices.Equal(s.Key, o.Key) && slices.Equal(s.Data, o.Data)
}

// sameRules compares the rules' texts, which describe them completely.
func sameRules(a, b []Rule) bool {
	return slices.EqualFunc(a, b, func(x, y Rule) bool {
		return slices.EqualFunc(x, y, func(p, q Statement) bool { return p.text == q.text })
	})
}

// Apply applies d to table.
func (d *Delta) Apply(table *Table) {
	maps.Copy(table.Sets, d.Sets)
	maps.Copy(table.Chains, d.Chains)
	for set, m := range d.Drop {
		for k := range m {
			table.Remove(set, k)
		}
	}
	for set, m := range d.Put {
		for k, v := range m {
			table.Put(set, k, v)
		}
	}
	for name := range d.DropChains {
		delete(table.Chains, name)
	}
	for name := range d.DropSets {
		delete(table.Sets, name)
		delete(table.Elements, name)
	}
}
