// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"time"
)

// Table is the desired state of a table of the family inet.
type Table struct {
	Name   string
	Chains map[string]Chain
	Sets   map[string]Set
	// Elements are the elements by set and key. For a set that is not a map the value is "".
	Elements map[string]map[string]string
}

// NewTable returns an empty table.
func NewTable(name string) *Table {
	return &Table{
		Name:     name,
		Chains:   map[string]Chain{},
		Sets:     map[string]Set{},
		Elements: map[string]map[string]string{},
	}
}

// ChainType is the type of a base chain.
type ChainType string

// The types of base chains.
const (
	Filter ChainType = "filter"
	NAT    ChainType = "nat"
)

// Hook is the hook of a base chain; empty for a regular chain, which others jump to.
type Hook string

// The hooks.
const (
	Prerouting  Hook = "prerouting"
	Input       Hook = "input"
	Forward     Hook = "forward"
	Output      Hook = "output"
	Postrouting Hook = "postrouting"
)

// Chain is a list of rules.
type Chain struct {
	Name     string
	Type     ChainType
	Hook     Hook
	Priority int
	Rules    []Rule
}

// Rule is a list of statements; each is evaluated if those before it have matched.
type Rule []Statement

// Set is a set, a map (with Data) or a verdict map (with Verdicts).
type Set struct {
	Name     string
	Key      []Type
	Data     []Type
	Verdicts bool
	// Interval: elements are ranges (Net, Range), which must not overlap. With several key parts each part is a range.
	Interval bool
	// Timeout: packets add elements (Update), which expire. They are not in Table.Elements.
	Timeout time.Duration
	// Size is the maximum number of elements; 0 means no limit, or 65,536 with a Timeout.
	Size uint32
}

// AddChain adds or replaces a chain.
func (t *Table) AddChain(c Chain) { t.Chains[c.Name] = c }

// AddSet adds a set. Elements of an existing one stay.
func (t *Table) AddSet(s Set) { t.Sets[s.Name] = s }

// Put adds or changes an element of a set that was added.
func (t *Table) Put(set, key, value string) {
	m := t.Elements[set]
	if m == nil {
		m = map[string]string{}
		t.Elements[set] = m
	}
	m[key] = value
}

// Remove removes an element, if it exists.
func (t *Table) Remove(set, key string) { delete(t.Elements[set], key) }

// dynamic reports whether packets add elements.
func (s Set) dynamic() bool { return s.Timeout > 0 }

func (s Set) width() int { return width(s.Key) }

func width(ts []Type) int {
	n := 0
	for _, t := range ts {
		n += t.padded()
	}
	return n
}
