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

// Refusal is a node that does not fit, and the status of the plugin that refused it.
type Refusal struct {
	Node   *state.NodeInfo
	Status *Status
}

// Attempt holds all results of one scheduling attempt. The Engine and the scheduler fill it; preemption and explain read it.
type Attempt struct {
	Pod      *state.PodInfo
	Cycle    *CycleState // the plugins' data of this attempt; it is also used after the attempt, until the pod is bound
	Snapshot *state.Snapshot
	Filters  []NamedFilter
	// All is set when a PreFilter refused all nodes; the attempt ends there.
	All *Status
	// Failed is set when a plugin could not decide. The pod may or may not be schedulable; it is tried again later.
	Failed *Status
	// Refused are the filtered nodes that do not fit. The nodes that Narrow excluded are not in it: they are counted in Narrowed, and
	// NarrowedBy is their status.
	Refused    []Refusal
	NarrowedBy *Status
	Narrowed   int
	Feasible   []*state.NodeInfo
	Looked     int // number of filtered nodes
	// Scores of the plugins and extenders: Raw[p][i] is the score of Feasible[i] from ScoredBy[p], and Scores[p][i] is the same normalized.
	// Totals[i] is the weighted sum. Ruled[p] has the rules of ScoredBy[p]; nil: it has none.
	ScoredBy []Weighted
	Ruled    []Ruled
	Raw      [][]int64
	Scores   [][]int64
	Totals   []int64
	// Best are the indexes of the largest totals, in ascending order.
	Best     []int32
	Chosen   *state.NodeInfo
	ChosenAt int // in Feasible
	// NominatedBefore is the pod's nominated node from an earlier attempt; "": none.
	NominatedBefore string
	but             func(*state.PodInfo) bool // selects nominated pods that are not considered; nil: all are considered
	// Outside is set for pods that HTTP extenders are interested in. PostFilter calls it to send the victims to them. Outside calls run off
	// the scheduling loop, while other pods are scheduled, and returns when run has returned. nil: PostFilter must not call extenders.
	Outside func(run func())
	// PostMessage is PostFilter's message, and Nominated the node where it makes room.
	PostMessage string
	Nominated   string
	// Leaving are nodes that are to be emptied: no hint suggests to use them.
	Leaving map[string]bool
	// Preemption is PostFilter's choice of victims; nil: there are none.
	Preemption *Preemption

	// Durations of the extension points. FilterTook includes PreFilterTook, ScoreTook includes PreScoreTook.
	PreFilterTook, FilterTook, PostFilterTook, PreScoreTook, ScoreTook time.Duration
}

// Preemption is the node where victims are evicted, and the reason for its choice.
type Preemption struct {
	Node       string
	Victims    []*state.PodInfo     // the most important first
	Elsewhere  map[types.UID]string // the nodes of victims on other nodes: a pod group may be evicted as a whole; nil: all are on Node
	Violations int                  // victims that a disruption budget protects
	Spared     int                  // pods of lower priority on the node that are not evicted
	Candidates int                  // nodes where preemption is possible
	RunnerUp   string               // the second best candidate
	Why        string               // the criterion that decided between Node and RunnerUp
}

// NodeOf returns a victim's node.
func (p *Preemption) NodeOf(victim *state.PodInfo) string {
	if node, ok := p.Elsewhere[victim.Pod.UID]; ok {
		return node
	}
	return p.Node
}

// NamedFilter is a NodeFilter with the plugin whose PreFilter returned it.
type NamedFilter struct {
	Plugin Plugin
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

// RefusedBy returns the names of the plugins that refused a node, each once.
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

// Reasons counts the refused nodes by reason.
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

// NoNodes is the message for a cluster without nodes.
const NoNodes = "no nodes available to schedule pods"

// Message returns the message of the FailedScheduling event and the PodScheduled condition.
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

// Histogram formats counted reasons as in kube-scheduler's events: sorted as text, so "10 x" is before "2 y".
func Histogram(counts map[string]int) string {
	parts := make([]string, 0, len(counts))
	for reason, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
