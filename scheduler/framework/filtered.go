// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"slices"

	"keelson/scheduler/state"
)

// Refusal is a node that does not fit, and the status of the plugin that refused it.
type Refusal struct {
	Node   *state.NodeInfo
	Status *Status
}

// Filtered is what an attempt's filters found out about the nodes.
type Filtered struct {
	Filters []NamedFilter
	// PreFilterStatus is set when a PreFilter refused all nodes; the attempt ends there.
	PreFilterStatus *Status
	// Refused are the filtered nodes that do not fit. The nodes that NodeNames exclude are not in it: they are counted
	// in Excluded, and ExcludedBy is their status.
	Refused []Refusal
	// Refusals is what Refused has in common with other attempts, which then must not be modified; nil: nothing.
	Refusals       *Refusals
	ExcludedBy     *Status
	Excluded       int
	Feasible       []*state.NodeInfo
	EvaluatedNodes int // number of filtered nodes
}

// NamedFilter is a NodeFilter with the name of the plugin whose PreFilter returned it.
type NamedFilter struct {
	Plugin string
	NodeFilter
}

// Check runs the filters on one node and returns the first refusal; nil: the node fits.
func Check(filters []NamedFilter, n *state.NodeInfo) *Status {
	for i := range filters {
		if st := filters[i].Filter(n); st != nil {
			return st
		}
	}
	return nil
}

// statuses counts the refused nodes by status.
func (f *Filtered) statuses() map[*Status]int {
	counts := map[*Status]int{}
	var last *Status
	run := 0
	for i := range f.Refused {
		if st := f.Refused[i].Status; st != last {
			if last != nil {
				counts[last] += run
			}
			last = st
			run = 0
		}
		run++
	}
	if last != nil {
		counts[last] += run
	}
	return counts
}

// RefusedBy returns the names of the plugins that refused a node, each once. The result must not be modified.
func (f *Filtered) RefusedBy() []string {
	if f.Refusals != nil {
		return f.Refusals.refusedBy
	}
	return f.listRefusedBy()
}

func (f *Filtered) listRefusedBy() []string {
	var names []string
	add := func(st *Status) {
		if st != nil && !slices.Contains(names, st.Plugin) {
			names = append(names, st.Plugin)
		}
	}
	add(f.PreFilterStatus)
	add(f.ExcludedBy)
	var last *Status
	for i := range f.Refused {
		if st := f.Refused[i].Status; st != last {
			add(st)
			last = st
		}
	}
	return names
}

// Reasons counts the refused nodes by reason. The result must not be modified.
func (f *Filtered) Reasons() map[string]int {
	if f.Refusals != nil {
		return f.Refusals.reasons
	}
	return f.countReasons()
}

func (f *Filtered) countReasons() map[string]int {
	counts := map[string]int{}
	for st, n := range f.statuses() {
		for _, r := range st.Reasons {
			counts[r] += n
		}
	}
	if f.ExcludedBy != nil {
		for _, r := range f.ExcludedBy.Reasons {
			counts[r] += f.Excluded
		}
	}
	return counts
}

// AdjustedFilters returns the filters for a state in which the added pods are on n and the removed ones are not.
func AdjustedFilters(filters []NamedFilter, n *state.NodeInfo, added, removed []*state.PodInfo) []NamedFilter {
	out := make([]NamedFilter, len(filters))
	for i, f := range filters {
		out[i] = f
		if f.Adjust != nil {
			out[i].NodeFilter = f.Adjust(n, added, removed)
		}
	}
	return out
}
