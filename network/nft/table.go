// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"time"
)

// Table is what should be in the kernel: a table of the family inet.
type Table struct {
	Name   string
	Chains map[string]Chain
	Sets   map[string]Set
	// Elements are the sets' contents by set and key. The value of a set that is no map is "".
	Elements map[string]map[string]string
}

// NewTable returns an empty table.
func NewTable(name string) *Table {
	return &Table{Name: name, Chains: map[string]Chain{}, Sets: map[string]Set{}, Elements: map[string]map[string]string{}}
}

// ChainType says what a base chain is for.
type ChainType string

// The types of base chains.
const (
	Filter ChainType = "filter"
	NAT    ChainType = "nat"
)

// Hook is where a base chain is attached; the zero value is none: a chain that others jump to.
type Hook string

// The hooks.
const (
	Prerouting  Hook = "prerouting"
	Input       Hook = "input"
	Forward     Hook = "forward"
	Output      Hook = "output"
	Postrouting Hook = "postrouting"
)

// Chain is a list of rules. A chain with a Hook sees packets by itself.
type Chain struct {
	Name     string
	Type     ChainType
	Hook     Hook
	Priority int
	Rules    []Rule
}

// Rule is a list of statements: each runs if those before it let the packet through.
type Rule []Statement

// Set is a set, a map (with Data) or a verdict map (with Verdicts).
type Set struct {
	Name     string
	Key      []Type
	Data     []Type
	Verdicts bool
	// Interval makes elements ranges (Net, Range). They must not overlap. With several key parts each part is a range.
	Interval bool
	// Timeout makes a set whose elements packets add (Update), and which forgets them. Its elements are none of the Table's.
	Timeout time.Duration
	// Size bounds the number of elements; 0 means no bound, or 65,536 where packets add them.
	Size uint32
}

// AddChain adds or replaces a chain.
func (t *Table) AddChain(c Chain) { t.Chains[c.Name] = c }

// AddSet adds a set, empty unless it was there.
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

// Remove takes an element away, if it is there.
func (t *Table) Remove(set, key string) { delete(t.Elements[set], key) }

// dynamic are sets that packets change.
func (s Set) dynamic() bool { return s.Timeout > 0 }

func (s Set) width() int { return width(s.Key) }

func width(ts []Type) int {
	n := 0
	for _, t := range ts {
		n += t.padded()
	}
	return n
}
