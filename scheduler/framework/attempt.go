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

// Attempt holds all results of one scheduling attempt: what each of its steps found out, and how long they took. The
// engine of package core and the scheduler fill it; preemption and explain read it.
type Attempt struct {
	Pod      *state.PodInfo
	Cycle    *CycleState // the plugins' data of this attempt; it is also used after the attempt, until the pod is bound
	Snapshot *state.Snapshot
	// Failed is set when a plugin could not decide. The pod may or may not be schedulable; it is tried again later.
	Failed *Status
	Filtered
	Scored
	Room
	Nominations
	// Took are the durations of the steps. Observe gets those of single plugins; nil: the attempt is not sampled.
	Took    Took
	Observe Observe
}

// Scored is what an attempt's scorers found out about the feasible nodes, and which node was chosen.
type Scored struct {
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
}

// Nominations are what an attempt knows of the nodes that preemption has made room on before.
type Nominations struct {
	// NominatedBefore is the pod's nominated node from an earlier attempt; "": none.
	NominatedBefore string
	// IgnoreNominated selects nominated pods that do not count; nil: all count.
	IgnoreNominated func(*state.PodInfo) bool
}

// Room is what PostFilter did for a pod that fits on no node, and what it needs for that.
type Room struct {
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
}

// Took are the durations of an attempt's extension points. Filter includes PreFilter, Score includes PreScore.
type Took struct {
	PreFilter, Filter, PostFilter, PreScore, Score time.Duration
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
