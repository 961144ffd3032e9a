// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/state"
)

// Refusal is one node's.
type Refusal struct {
	Node   *state.NodeInfo
	Status *Status
}

// Attempt is everything one scheduling attempt found out. It is filled by the scheduler and read by preemption and explain.
type Attempt struct {
	Pod      *state.PodInfo
	Cycle    *CycleState // what plugins keep of it; it outlives the attempt
	Snapshot *state.Snapshot
	Filters  []NamedFilter
	// All is set when a plugin refused every node at once; the attempt ends there.
	All *Status
	// Failed is set when a plugin could not decide: nothing is known about the pod then, and the attempt is to be made again later.
	Failed *Status
	// Refused are the nodes that were looked at and do not fit; a node that Narrow left out is refused by NarrowedBy.
	Refused    []Refusal
	NarrowedBy *Status
	Narrowed   int
	Feasible   []*state.NodeInfo
	Looked     int // nodes looked at
	// Plugin scores: Raw[p][i] as ScoredBy[p] gave it to Feasible[i], Scores[p][i] normalized; Totals[i] is weighted. Ruled[p] has the rules of
	// ScoredBy[p], nil: it has none.
	ScoredBy []Weighted
	Ruled    []Ruled
	Raw      [][]int64
	Scores   [][]int64
	Totals   []int64
	// Best are the places in Totals of the largest, in their order.
	Best     []int32
	Chosen   *state.NodeInfo
	ChosenAt int // in Feasible
	// NominatedBefore is the node where an earlier attempt made room for this pod; "": none.
	NominatedBefore string
	but             func(*state.PodInfo) bool // tells which nominated pods do not count; nil: all do
	// Outside is set for pods about which HTTP extenders are asked. PostFilter calls it to ask them about victims: it runs run while other
	// pods are scheduled. nil: extenders must not be asked.
	Outside func(run func())
	// PostMessage is what PostFilter had to say, and Nominated the node where it makes room.
	PostMessage string
	Nominated   string
	// Preemption is what PostFilter decided about victims; nil: there are none.
	Preemption *Preemption

	// How long the extension points took. FilterTook includes PreFilterTook, ScoreTook includes PreScoreTook.
	PreFilterTook, FilterTook, PostFilterTook, PreScoreTook, ScoreTook time.Duration
}

// Preemption is a node where room is made, and how it was chosen.
type Preemption struct {
	Node       string
	Victims    []*state.PodInfo     // the most important first
	Elsewhere  map[types.UID]string // the nodes of victims that are not on Node: of groups whose pods leave together; nil: all are
	Violations int                  // victims that a disruption budget protects
	Spared     int                  // less important pods of the node that may stay
	Candidates int                  // nodes where room could be made
	RunnerUp   string               // the next best of them
	Why        string               // what decided between the two
}

// NodeOf is a victim's node.
func (p *Preemption) NodeOf(victim *state.PodInfo) string {
	if node, ok := p.Elsewhere[victim.Pod.UID]; ok {
		return node
	}
	return p.Node
}

// NamedFilter is a prepared filter with the plugin that made it.
type NamedFilter struct {
	Plugin Plugin
	NodeFilter
}

// Check runs all filters on one node.
func Check(filters []NamedFilter, n *state.NodeInfo) *Status {
	for i := range filters {
		if st := filters[i].Filter(n); st != nil {
			return st
		}
	}
	return nil
}

// statuses are the different statuses of refused nodes, each with how many share it.
func (a *Attempt) statuses() map[*Status]int {
	counts := map[*Status]int{}
	var last *Status
	run := 0
	for i := range a.Refused {
		if st := a.Refused[i].Status; st != last {
			if last != nil {
				counts[last] += run
			}
			last, run = st, 0
		}
		run++
	}
	if last != nil {
		counts[last] += run
	}
	return counts
}

// RefusedBy lists the plugins that refused a node, each once.
func (a *Attempt) RefusedBy() []string {
	var names []string
	add := func(st *Status) {
		if st != nil && !slices.Contains(names, st.Plugin) {
			names = append(names, st.Plugin)
		}
	}
	add(a.All)
	add(a.NarrowedBy)
	var last *Status
	for i := range a.Refused {
		if st := a.Refused[i].Status; st != last {
			add(st)
			last = st
		}
	}
	return names
}

// Reasons counts the reasons over all nodes.
func (a *Attempt) Reasons() map[string]int {
	counts := map[string]int{}
	for st, n := range a.statuses() {
		for _, r := range st.Reasons {
			counts[r] += n
		}
	}
	if a.NarrowedBy != nil {
		for _, r := range a.NarrowedBy.Reasons {
			counts[r] += a.Narrowed
		}
	}
	return counts
}

// NoNodes is what users read when the cluster has no node at all.
const NoNodes = "no nodes available to schedule pods"

// Message is the sentence of the FailedScheduling event and the PodScheduled condition.
func (a *Attempt) Message() string {
	if a.Failed != nil {
		return a.Failed.Plugin + ": " + a.Failed.Error()
	}
	total := len(a.Snapshot.Nodes)
	if total == 0 {
		return NoNodes
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available:", total)
	if a.All != nil {
		b.WriteString(" " + strings.Join(a.All.Reasons, ", ") + ".")
	} else if s := Histogram(a.Reasons()); s != "" {
		b.WriteString(" " + s + ".")
	}
	if a.PostMessage != "" {
		b.WriteString(" " + a.PostMessage)
	}
	return b.String()
}

// Histogram writes counted reasons as events do: sorted as text, so that "10 x" comes before "2 y".
func Histogram(counts map[string]int) string {
	parts := make([]string, 0, len(counts))
	for reason, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
