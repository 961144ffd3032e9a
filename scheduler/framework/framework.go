// SPDX-License-Identifier: Apache-2.0

// Package framework is the contract between the scheduling loop and its plugins. The
// scheduler runs plugins through a Profile; plugins never call each other, never do I/O
// in a filter or score, and never modify what they are given.
//
// A plugin that filters or scores prepares once per pod and returns what judges single
// nodes, or nil when it has nothing to say about this pod, which then costs nothing:
//
//	Filterer.Prepare(pod, snapshot)           -> NodeFilter.Filter(node) -> *Status, nil: fits
//	Scorer.PrepareScore(pod, snapshot, nodes) -> NodeScorer.Score(node), Normalize(scores)
package framework

import (
	"context"
	"slices"

	"keelson/scheduler/state"
)

// MaxScore is the best normalized score of a node; 0 is the worst.
const MaxScore = 100

// Code says what a refusal means for what is tried next.
type Code int

const (
	// Unschedulable says that taking pods away from the node may help.
	Unschedulable Code = iota
	// Unresolvable says that taking pods away from the node does not help.
	Unresolvable
	// Failed says that the plugin could not decide. The attempt is given up and made again later.
	Failed
)

// Status is a refusal; a nil *Status is consent. Shared between nodes: never modified.
type Status struct {
	Code    Code
	Plugin  string
	Reasons []string // as users know them from events
}

// Refuse makes a status.
func Refuse(plugin string, code Code, reasons ...string) *Status {
	return &Status{Code: code, Plugin: plugin, Reasons: reasons}
}

// Plugin has a name that is known to users.
type Plugin interface{ Name() string }

// Gater keeps pods out of the queue until it returns nil.
type Gater interface {
	Plugin
	Gate(pod *state.PodInfo) *Status
}

// Filterer refuses nodes.
type Filterer interface {
	Plugin
	// Prepare returns nil, nil when every node is fine. A status refuses all nodes.
	Prepare(pod *state.PodInfo, s *state.Snapshot) (NodeFilter, *Status)
}

// NodeFilter judges nodes for one pod, from several goroutines at once.
type NodeFilter interface {
	Filter(n *state.NodeInfo) *Status
}

// Lasting is a NodeFilter whose verdict rests on the node's name, labels, taints and cordon alone and, of the pod, on what
// PodInfo.Asks covers. The engine asks it once per such node and kind of pod.
type Lasting interface {
	Lasting()
}

// Narrower is a NodeFilter that knows the few nodes that can pass.
type Narrower interface {
	// Narrow returns the names of the only nodes that can pass, or nil if any node can. Filter still decides.
	Narrow() []string
}

// Adjuster is a NodeFilter whose answer depends on pods on other nodes than the one it is asked about. Preemption asks it
// what it would say if pods were not there.
type Adjuster interface {
	// Adjust returns a filter that counts added pods and does not count removed pods on node n. The receiver stays as it is.
	Adjust(n *state.NodeInfo, added, removed []*state.PodInfo) NodeFilter
}

// Explainer says more about its refusal than the reason.
type Explainer interface {
	// Explain returns what is missing ("memory: asks 4Gi, free 1.2Gi of 3.8Gi"), what would help ("fits here if ..."; may be
	// empty) and how far the node is from fitting (0: almost; 1 and more: hopeless), to find the nearest one.
	Explain(pod *state.PodInfo, n *state.NodeInfo, st *Status) (short, hint string, distance float64)
}

// Scorer ranks nodes that fit.
type Scorer interface {
	Plugin
	// PrepareScore returns nil when all nodes are equal. nodes are those that fit, at least two.
	PrepareScore(pod *state.PodInfo, s *state.Snapshot, nodes []*state.NodeInfo) NodeScorer
}

// NodeScorer scores nodes for one pod.
type NodeScorer interface {
	Score(n *state.NodeInfo) int64
	// Normalize turns scores of nodes, in the order Score was asked, into 0..MaxScore; more is better.
	Normalize(scores []int64)
}

// Reserver keeps what a pod needs on its node besides resources. Unreserve undoes it and may be called without a Reserve.
type Reserver interface {
	Plugin
	Reserve(ctx context.Context, pod *state.PodInfo, node *state.NodeInfo) error
	Unreserve(ctx context.Context, pod *state.PodInfo, node string)
}

// Permitter may hold back or refuse a pod that has its node. Permit may block; it runs off the scheduling loop.
type Permitter interface {
	Plugin
	Permit(ctx context.Context, pod *state.PodInfo, node string) *Status
}

// PreBinder prepares the node before the binding is written, off the scheduling loop.
type PreBinder interface {
	Plugin
	PreBind(ctx context.Context, pod *state.PodInfo, node string) error
}

// Binder writes the binding, off the scheduling loop.
type Binder interface {
	Plugin
	Bind(ctx context.Context, pod *state.PodInfo, node string) error
}

// PostFilterer tries to make room when no node fits.
type PostFilterer interface {
	Plugin
	// PostFilter returns the node where room is being made, or the reason why there will be none.
	PostFilter(ctx context.Context, a *Attempt) (node, message string)
}

// Hinter says which cluster events may make a pod fit that the plugin refused. A plugin that refuses pods and is no Hinter
// gets them tried again on every event.
type Hinter interface {
	Plugin
	Hints() []Hint
}

// Profile is a set of plugins in the order they run, with their weights in scores.
type Profile struct {
	SchedulerName string
	Plugins       []Weighted
}

// Weighted is a plugin with its weight; the weight matters for Scorers only.
type Weighted struct {
	Plugin Plugin
	Weight int64
}

// Of returns the profile's plugins that implement T, in order.
func Of[T Plugin](p *Profile) []T {
	var out []T
	for _, w := range p.Plugins {
		if t, ok := w.Plugin.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// Names lists the profile's plugins.
func (p *Profile) Names() []string {
	names := make([]string, 0, len(p.Plugins))
	for _, w := range p.Plugins {
		names = append(names, w.Plugin.Name())
	}
	slices.Sort(names)
	return names
}

// NormalizeByMax scales scores so that the largest becomes MaxScore; reverse makes the smallest the best.
func NormalizeByMax(scores []int64, reverse bool) {
	var most int64
	for _, s := range scores {
		most = max(most, s)
	}
	for i, s := range scores {
		if most > 0 {
			s = s * MaxScore / most
		}
		if reverse {
			s = MaxScore - s
		}
		scores[i] = s
	}
}
