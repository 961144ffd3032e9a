// SPDX-License-Identifier: Apache-2.0

// Package framework is the contract between the scheduling loop and its plugins, like kube-scheduler's scheduling
// framework. The scheduler runs the plugins of a Profile; package plugins implements most of them. Plugins never call
// each other, never do I/O in a filter or score, and never modify their arguments. The package itself never writes to
// the API server.
//
// The extension points of an attempt, in their order, with Kubernetes' names. A plugin implements only those that it
// needs:
//
//	PreEnqueuer.PreEnqueue(pod)                 whether the pod may be tried at all
//	QueueSorter.Less(a, b)                      the order of the pods: one plugin for all profiles
//	Filterer.PreFilter(cycle, pod, snapshot)    once per pod -> NodeFilter.Filter(node) -> *Status, nil: the pod fits
//	PostFilterer.PostFilter(attempt)            no node fits: make room by preemption
//	Scorer.PreScore(cycle, pod, snapshot, ...)  once per pod -> NodeScorer.Score(node), Normalize(scores)
//	Reserver.Reserve, Unreserve                 reserve what the pod needs; undone if a later step fails
//	PlacementFeasible.PlacementFeasible         for a pod group: whether enough of its pods have nodes
//	Permitter.Permit                            allow the pod, refuse it, or make it wait
//	PreBinder.PreBind                           prepare the node             } off the scheduling loop
//	Binder.Bind, PostBinder.PostBind            write the binding; react     }
//
// A PreFilter or PreScore that does not apply to a pod returns nil; the plugin is then skipped for this pod. A plugin
// stores data for a later extension point in the attempt's CycleState, under a Key. It reads objects other than nodes
// and pods from its Handle's informers. EventsToRegister returns the events that may make a refused pod schedulable.
//
// Pod groups use PlacementFeasible (above), and PodGroupPostFilterer instead of PostFilterer (group.go).
//
// Engine runs the filters and scorers. A NodeFilter or NodeScorer can implement further interfaces, so that it is
// called less often:
//
//	NodeLocal             its result depends on one node only: it is called once for all pods of a class (class.go)
//	AllFilter, AllScorer  it filters or scores all nodes in one call (filterall.go)
//	PreFilterResult       it knows the few nodes that can pass
//	NoNormalize           its scores need no Normalize
//	RuleScorer            its score is a sum over rules, which explain shows one by one
//	PreFilterExtensions   it can assume added or removed pods: preemption and nominated pods need that
package framework

import (
	"context"
	"errors"
	"strings"
	"time"

	"keelson/scheduler/state"
)

// MaxScore is the best normalized score of a node; 0 is the worst.
const MaxScore = 100

// Code classifies a refusal: it decides whether preemption is tried.
type Code int

const (
	// Unschedulable means that evicting pods from the node may help.
	Unschedulable Code = iota
	// Unresolvable means that evicting pods from the node does not help (UnschedulableAndUnresolvable in
	// kube-scheduler).
	Unresolvable
	// Failed means that the plugin could not decide. The attempt is aborted and repeated later.
	Failed
)

// Status is a refusal; a nil *Status means success. Several nodes share a Status, so it must not be modified.
type Status struct {
	Code    Code
	Plugin  string
	Reasons []string // as in kube-scheduler's events
}

// NewStatus returns a new Status.
func NewStatus(plugin string, code Code, reasons ...string) *Status {
	return &Status{Code: code, Plugin: plugin, Reasons: reasons}
}

// Error implements error, for methods of plugins that return an error. Unless the code is Failed, such an error is a
// refusal of the pod.
func (s *Status) Error() string { return strings.Join(s.Reasons, ", ") }

// Plugin has the name that configurations, events and metrics use.
type Plugin interface{ Name() string }

// PreEnqueuer gates pods: a pod does not enter the active queue until PreEnqueue returns nil.
type PreEnqueuer interface {
	Plugin
	PreEnqueue(pod *state.PodInfo) *Status
}

// Filterer refuses nodes.
type Filterer interface {
	Plugin
	// PreFilter returns nil, nil if the plugin accepts every node. A status refuses all nodes.
	PreFilter(c *CycleState, pod *state.PodInfo, s *state.Snapshot) (NodeFilter, *Status)
}

// NodeFilter filters nodes for one pod. Filter must be safe for concurrent use. It returns nil if the pod fits.
type NodeFilter interface {
	Filter(n *state.NodeInfo) *Status
}

// NodeLocal marks a NodeFilter or NodeScorer whose result depends only on the NodeInfo that it is called with, on the
// labels, taints and images of all nodes, and on those parts of the pod that state.PodInfo.AppendClass covers. The
// Engine calls it once per version of a node and class of pods.
type NodeLocal interface {
	NodeLocal()
}

// AllFilter is a NodeFilter that is faster for all nodes in one call than for one node after the other.
type AllFilter interface {
	// FilterAll sets the elements of out that are nil to the result of Filter, and does not change the others. out is
	// indexed like the snapshot's Nodes.
	FilterAll(out []*Status)
}

// AllScorer is a NodeScorer that is faster for many nodes in one call than for one node after the other.
type AllScorer interface {
	// ScoreAll sets scores[i] to the Score of the node at index places[i] of the snapshot's Nodes. It is called instead
	// of Score.
	ScoreAll(places []int32, scores []int64)
}

// NoNormalize marks a NodeScorer whose Normalize changes nothing.
type NoNormalize interface {
	NoNormalize()
}

// PreFilterResult is a NodeFilter that knows in advance which few nodes can pass, like kube-scheduler's
// PreFilterResult.
type PreFilterResult interface {
	// NodeNames returns the names of the only nodes that can pass, or nil if any node can. Filter still decides.
	NodeNames() []string
}

// PreFilterExtensions is a NodeFilter whose result depends on pods on other nodes too. Preemption uses it to filter as
// if some pods were added or removed.
type PreFilterExtensions interface {
	// Adjust returns a filter that assumes that the added pods are on node n and the removed pods are not. The receiver
	// is not changed.
	Adjust(n *state.NodeInfo, added, removed []*state.PodInfo) NodeFilter
}

// Explainer is a plugin that explains its refusals in more detail than the reason.
type Explainer interface {
	// Explain returns what is missing ("memory: asks 4Gi, free 1.2Gi of 3.8Gi"), what would help ("fits on n if ...";
	// may be empty) and the distance of the node from fitting (0: almost fits; 1 and more: cannot fit), to find the
	// nearest.
	Explain(pod *state.PodInfo, n *state.NodeInfo, st *Status) (short, hint string, distance float64)
}

// DistanceExplainer is an Explainer whose Distance is much cheaper than Explain: only the nearest of many refused nodes
// are explained.
type DistanceExplainer interface {
	Explainer
	// Distance returns Explain's distance, and whether Explain has a hint.
	Distance(pod *state.PodInfo, n *state.NodeInfo, st *Status) (distance float64, fixable bool)
}

// Scorer scores feasible nodes.
type Scorer interface {
	Plugin
	// PreScore returns nil if the plugin treats all nodes as equal. nodes are the feasible nodes.
	PreScore(c *CycleState, pod *state.PodInfo, s *state.Snapshot, nodes []*state.NodeInfo) NodeScorer
}

// NodeScorer scores nodes for one pod.
type NodeScorer interface {
	Score(n *state.NodeInfo) int64
	// Normalize scales the scores, which are in the order of the calls of Score, to 0..MaxScore; higher is better. Only
	// the plugin CELPolicy, which sums weighted rules, may exceed this range.
	Normalize(scores []int64)
}

// RuleScorer is a NodeScorer whose score is the weighted sum of the results of rules. It keeps the result of each rule,
// for explain to show.
type RuleScorer interface {
	Rules() []Rule
	// RuleResult returns the result of a rule for the at-th scored node: its raw value, and the same normalized to
	// 0..MaxScore. false: no result.
	RuleResult(at, rule int) (raw float64, score int64, ok bool)
}

// Rule is a rule of a RuleScorer: the policy, the source of the policy (From), and the field of the policy that
// contains the Expression.
type Rule struct {
	Policy, From, Field, Expression string
	Weight                          int64
}

// Reserver reserves what a pod needs besides the node's resources, such as volumes. Unreserve undoes it, and may be
// called without a Reserve.
type Reserver interface {
	Plugin
	// Reserve runs on the scheduling loop. An error that is a *Status refuses the pod; after any other error the
	// attempt is repeated.
	Reserve(ctx context.Context, c *CycleState, pod *state.PodInfo, node *state.NodeInfo) error
	Unreserve(ctx context.Context, c *CycleState, pod *state.PodInfo, node string)
}

// Permitter may refuse a pod that has a node, or delay its binding.
type Permitter interface {
	Plugin
	// Permit returns nil, 0 to allow the pod; a status to refuse it; or nil and the time-out (at most MaxWait) within
	// which the plugin must allow the pod through Handle.Waiting. It runs on the scheduling loop, after Reserve: it
	// must not block.
	Permit(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) (*Status, time.Duration)
}

// PlacementFeasible decides about a pod group while its pods get nodes, and may refuse it as a whole.
type PlacementFeasible interface {
	Plugin
	// PlacementFeasible gets the number of the group's pods that have nodes, and of those still to be tried. nil: the
	// pods with nodes may be bound. With wait, a refusal is not final as long as pods remain to be tried. It must be
	// quick.
	PlacementFeasible(g *state.PodGroup, scheduled, remaining int) (st *Status, wait bool)
}

// PreBinder prepares the node before the binding is written. PreBind runs off the scheduling loop.
type PreBinder interface {
	Plugin
	// PreBindPreFlight reports whether PreBind has work to do for the pod, which may take long. It runs on the
	// scheduling loop.
	PreBindPreFlight(c *CycleState, pod *state.PodInfo, node string) bool
	// PreBind may block. An error that is a *Status refuses the pod; after any other error the attempt is repeated.
	PreBind(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) error
}

// Binder writes the binding. It runs off the scheduling loop.
type Binder interface {
	Plugin
	// Bind returns ErrSkip to leave the pod to the next binder.
	Bind(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) error
}

// ErrSkip means that a Binder does not bind this pod.
var ErrSkip = errors.New("not bound by this plugin")

// PostBinder is called after a pod was bound, off the scheduling loop.
type PostBinder interface {
	Plugin
	PostBind(ctx context.Context, c *CycleState, pod *state.PodInfo, node string)
}

// QueueSorter orders the pods in the active queue.
type QueueSorter interface {
	Plugin
	// Less reports whether a is tried before b. It must be quick: it is called under the queue's lock.
	Less(a, b *QueuedPod) bool
}

// QueuedPod is a pod in the scheduling queue.
type QueuedPod struct {
	Pod      *state.PodInfo
	Attempts int       // number of attempts, the current one included
	First    time.Time // when the pod was added to the queue
	Since    time.Time // when it last entered the active or the unschedulable queue
}

// PostFilterer tries to make room, by preemption, if no node fits.
type PostFilterer interface {
	Plugin
	// PostFilter returns the nominated node, or a message with the reason why no room can be made. The attempt's
	// CycleState is a.Cycle.
	PostFilter(ctx context.Context, a *Attempt) (node, message string)
}

// EnqueueExtensions returns the cluster events that may make a pod schedulable which the plugin refused. If a plugin
// does not implement it, its refused pods are tried again after every event.
type EnqueueExtensions interface {
	Plugin
	EventsToRegister() []ClusterEventWithHint
}

// NormalizeByMax scales scores so that the largest becomes MaxScore. With reverse the smallest score becomes the best.
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
