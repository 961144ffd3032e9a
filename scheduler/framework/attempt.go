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

// Attempt holds all results of one scheduling attempt. The Engine and the scheduler fill it; preemption and explain
// read it.
type Attempt struct {
	Pod      *state.PodInfo
	Cycle    *CycleState // the plugins' data of this attempt; it is also used after the attempt, until the pod is bound
	Snapshot *state.Snapshot
	Filters  []NamedFilter
	// PreFilterStatus is set when a PreFilter refused all nodes; the attempt ends there.
	PreFilterStatus *Status
	// Failed is set when a plugin could not decide. The pod may or may not be schedulable; it is tried again later.
	Failed *Status
	// Refused are the filtered nodes that do not fit. The nodes that NodeNames exclude are not in it: they are counted
	// in Excluded, and ExcludedBy is their status.
	Refused []Refusal
	// what Refused has in common with other attempts, which then must not be modified; nil: nothing
	Refusals       *Refusals
	ExcludedBy     *Status
	Excluded       int
	Feasible       []*state.NodeInfo
	EvaluatedNodes int // number of filtered nodes
	// Scores of the plugins and extenders: Raw[p][i] is the score of Feasible[i] from ScoredBy[p], and Scores[p][i] is
	// the same normalized. Totals[i] is the weighted sum. RuleScorers[p] has the rules of ScoredBy[p]; nil: it has
	// none.
	ScoredBy    []Weighted
	RuleScorers []RuleResults
	Raw         [][]int64
	Scores      [][]int64
	Totals      []int64
	// Best are the indexes of the largest totals, in ascending order.
	Best     []int32
	Chosen   *state.NodeInfo
	ChosenAt int // in Feasible
	// NominatedBefore is the pod's nominated node from an earlier attempt; "": none.
	NominatedBefore string
	// IgnoreNominated selects nominated pods that do not count; nil: all count.
	IgnoreNominated func(*state.PodInfo) bool
	// CallExtenders is set for pods that HTTP extenders are interested in. PostFilter sends the victims to them in the
	// function run, during which other pods are scheduled. CallExtenders returns when run has returned. nil: PostFilter
	// must not call extenders.
	CallExtenders func(run func())
	// PostFilterMessage is PostFilter's message, and NominatedNode the node where it makes room.
	PostFilterMessage string
	NominatedNode     string
	// DrainedNodes are nodes that are to be drained: no hint suggests to use them.
	DrainedNodes map[string]bool
	// Preemption is PostFilter's choice of victims; nil: there are none.
	Preemption *Preemption

	// Observe gets the durations of single plugins; nil: the attempt is not sampled.
	Observe Observe

	// Durations of the extension points. FilterTook includes PreFilterTook, ScoreTook includes PreScoreTook.
	PreFilterTook, FilterTook, PostFilterTook, PreScoreTook, ScoreTook time.Duration
}

// Preemption is the node where victims are evicted, and the reason for its choice.
type Preemption struct {
	Node    string
	Victims []*state.PodInfo // the most important first
	// the nodes of victims on other nodes: a pod group may be evicted as a whole; nil: all are on Node
	OtherNodes    map[types.UID]string
	PDBViolations int    // victims whose eviction violates a PodDisruptionBudget
	Reprieved     int    // pods of lower priority on the node that need not be evicted
	Candidates    int    // nodes where preemption is possible
	RunnerUp      string // the second best candidate
	Why           string // the criterion that decided between Node and RunnerUp
}

// NodeOf returns a victim's node.
func (p *Preemption) NodeOf(victim *state.PodInfo) string {
	if node, ok := p.OtherNodes[victim.Pod.UID]; ok {
		return node
	}
	return p.Node
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
func (a *Attempt) statuses() map[*Status]int {
	counts := map[*Status]int{}
	var last *Status
	run := 0
	for i := range a.Refused {
		if st := a.Refused[i].Status; st != last {
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
func (a *Attempt) RefusedBy() []string {
	if a.Refusals != nil {
		return a.Refusals.refusedBy
	}
	return a.listRefusedBy()
}

func (a *Attempt) listRefusedBy() []string {
	var names []string
	add := func(st *Status) {
		if st != nil && !slices.Contains(names, st.Plugin) {
			names = append(names, st.Plugin)
		}
	}
	add(a.PreFilterStatus)
	add(a.ExcludedBy)
	var last *Status
	for i := range a.Refused {
		if st := a.Refused[i].Status; st != last {
			add(st)
			last = st
		}
	}
	return names
}

// Reasons counts the refused nodes by reason. The result must not be modified.
func (a *Attempt) Reasons() map[string]int {
	if a.Refusals != nil {
		return a.Refusals.reasons
	}
	return a.countReasons()
}

func (a *Attempt) countReasons() map[string]int {
	counts := map[string]int{}
	for st, n := range a.statuses() {
		for _, r := range st.Reasons {
			counts[r] += n
		}
	}
	if a.ExcludedBy != nil {
		for _, r := range a.ExcludedBy.Reasons {
			counts[r] += a.Excluded
		}
	}
	return counts
}

// NoNodes is the message for a cluster without nodes.
const NoNodes = "no nodes available to schedule pods"

// Message returns the message of the FailedScheduling event and the PodScheduled condition.
func (a *Attempt) Message() string {
	text := a.NoFit()
	if a.PostFilterMessage != "" && a.Failed == nil && len(a.Snapshot.Nodes) > 0 {
		text += " " + a.PostFilterMessage
	}
	return text
}

// NoFit is Message without PostFilter's: why no node fits.
func (a *Attempt) NoFit() string {
	if a.Failed != nil {
		return a.Failed.Plugin + ": " + a.Failed.Error()
	}
	total := len(a.Snapshot.Nodes)
	if total == 0 {
		return NoNodes
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available:", total)
	if a.PreFilterStatus != nil {
		b.WriteString(" " + strings.Join(a.PreFilterStatus.Reasons, ", ") + ".")
	} else if s := Histogram(a.Reasons()); s != "" {
		b.WriteString(" " + s + ".")
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

// RelevantNominatedPods returns the nominated pods for which the attempt's pod must leave room: other pods of equal or
// higher priority.
func (a *Attempt) RelevantNominatedPods(nominated []*state.PodInfo) []*state.PodInfo {
	var relevant []*state.PodInfo
	for _, p := range nominated {
		if p.Priority >= a.Pod.Priority && p.Pod.UID != a.Pod.Pod.UID &&
			(a.IgnoreNominated == nil || !a.IgnoreNominated(p)) {
			relevant = append(relevant, p)
		}
	}
	return relevant
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
