// SPDX-License-Identifier: Apache-2.0

// Package framework is the contract between the scheduling loop and its plugins. The
// scheduler runs plugins through a Profile; plugins never call each other, never do I/O
// in a filter or score, and never modify what they are given.
//
// The extension points of an attempt, in their order, by Kubernetes' names. A plugin implements those that it is about:
//
//	PreEnqueuer.PreEnqueue(pod)                 whether the pod may be tried at all
//	QueueSorter.Less(a, b)                      who is tried first: one plugin for all profiles
//	Filterer.PreFilter(cycle, pod, snapshot)    once per pod -> NodeFilter.Filter(node) -> *Status, nil: fits
//	PostFilterer.PostFilter(attempt)            no node fits: make room
//	Scorer.PreScore(cycle, pod, snapshot, ...)  once per pod -> NodeScorer.Score(node), Normalize(scores)
//	Reserver.Reserve, Unreserve                 keep what the pod needs; undone when what follows fails
//	PlacementFeasible.PlacementFeasible         of a pod group: whether enough of its pods have nodes
//	Permitter.Permit                            let it go on, refuse it, or have it wait
//	PreBinder.PreBind                           prepare the node        } off the scheduling loop
//	Binder.Bind, PostBinder.PostBind            write; know of it       }
//
// A PreFilter or PreScore that has nothing to say about a pod returns nil, which then costs nothing. What a plugin finds out at one
// point and wants at a later one it keeps in the attempt's CycleState, under a Key.
// What a plugin looks at besides nodes and pods it gets from its Handle's informers. In EventsToRegister it names the changes that may make
// a pod fit which it refused.
//
// Pod groups have PlacementFeasible (above), and PodGroupPostFilterer in place of PostFilterer (group.go).
//
// Engine runs the filters and scorers. A NodeFilter or NodeScorer can tell it more about itself, to be asked less often:
//
//	Local                 its answer rests on one node: it is asked once for all pods of a class (class.go)
//	AllFilter, AllScorer  it judges all nodes in one call (wholesale.go)
//	Narrower              it knows the few nodes that can pass
//	Absolute              its scores need no Normalize
//	Ruled                 its score is the sum of rules, which people want to see each
//	PreFilterExtensions   it can tell what it would say if pods came or went: preemption asks
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

// Error makes a refusal an error where plugins return errors: it is a verdict about the pod, unless its code is Failed.
func (s *Status) Error() string { return strings.Join(s.Reasons, ", ") }

// Plugin has a name that is known to users.
type Plugin interface{ Name() string }

// PreEnqueuer keeps pods out of the queue until it returns nil.
type PreEnqueuer interface {
	Plugin
	PreEnqueue(pod *state.PodInfo) *Status
}

// Filterer refuses nodes.
type Filterer interface {
	Plugin
	// PreFilter returns nil, nil when every node is fine. A status refuses all nodes.
	PreFilter(c *CycleState, pod *state.PodInfo, s *state.Snapshot) (NodeFilter, *Status)
}

// NodeFilter judges nodes for one pod, from several goroutines at once.
type NodeFilter interface {
	Filter(n *state.NodeInfo) *Status
}

// Local is a NodeFilter or a NodeScorer whose answer rests on three things alone: the NodeInfo it is asked about; labels, taints and images of
// all nodes; and, of the pod, what state.PodInfo.AppendClass covers. The engine asks it once per state of a node and class of pods.
type Local interface {
	Local()
}

// AllFilter is a NodeFilter that is quicker with all nodes than with one after the other.
type AllFilter interface {
	// FilterAll sets out, by place in the snapshot's Nodes, to Filter's verdict where it is nil. It leaves others as they are.
	FilterAll(out []*Status)
}

// AllScorer is a NodeScorer that is quicker with many nodes than with one after the other.
type AllScorer interface {
	// ScoreAll sets scores to Score of the nodes at places in the snapshot's Nodes. It is called in place of Score.
	ScoreAll(places []int32, scores []int64)
}

// Absolute is a NodeScorer whose Normalize changes nothing.
type Absolute interface {
	Absolute()
}

// Narrower is a NodeFilter that knows the few nodes that can pass.
type Narrower interface {
	// Narrow returns the names of the only nodes that can pass, or nil if any node can. Filter still decides.
	Narrow() []string
}

// PreFilterExtensions is a NodeFilter whose answer depends on pods on other nodes than the one it is asked about. Preemption asks it
// what it would say if pods were not there.
type PreFilterExtensions interface {
	// Adjust returns a filter that counts added pods and does not count removed pods on node n. The receiver stays as it is.
	Adjust(n *state.NodeInfo, added, removed []*state.PodInfo) NodeFilter
}

// Explainer says more about its refusal than the reason.
type Explainer interface {
	// Explain returns what is missing ("memory: asks 4Gi, free 1.2Gi of 3.8Gi"), what would help ("fits on n if ..."; may be
	// empty) and how far the node is from fitting (0: almost; 1 and more: hopeless), to find the nearest one.
	Explain(pod *state.PodInfo, n *state.NodeInfo, st *Status) (short, hint string, distance float64)
}

// Ranker is an Explainer whose Distance costs much less than Explain: only the nearest of many refused nodes are explained.
type Ranker interface {
	Explainer
	// Distance returns Explain's distance, and whether Explain has a hint.
	Distance(pod *state.PodInfo, n *state.NodeInfo, st *Status) (distance float64, fixable bool)
}

// Scorer ranks nodes that fit.
type Scorer interface {
	Plugin
	// PreScore returns nil when all nodes are equal. nodes are those that fit.
	PreScore(c *CycleState, pod *state.PodInfo, s *state.Snapshot, nodes []*state.NodeInfo) NodeScorer
}

// NodeScorer scores nodes for one pod.
type NodeScorer interface {
	Score(n *state.NodeInfo) int64
	// Normalize turns scores of nodes, in the order Score was asked, into 0..MaxScore; more is better. Only a plugin that sums weighted rules
	// (CELPolicy) may go beyond.
	Normalize(scores []int64)
}

// Ruled is a NodeScorer whose score is the sum of what rules give, each times its weight. It keeps what each gave, for people to be told.
type Ruled interface {
	Rules() []Rule
	// Given is what a rule gave the node that was scored as the at-th: its value, and this from 0 to MaxScore. false: it had none.
	Given(at, rule int) (raw float64, score int64, ok bool)
}

// Rule is one of them, by the field of the policy that has it. From says where the policy comes from.
type Rule struct {
	Policy, From, Field, Expression string
	Weight                          int64
}

// Reserver keeps what a pod needs on its node besides resources. Unreserve undoes it and may be called without a Reserve.
type Reserver interface {
	Plugin
	// Reserve runs on the scheduling loop. An error that is a *Status is a verdict, any other makes the attempt be made again.
	Reserve(ctx context.Context, c *CycleState, pod *state.PodInfo, node *state.NodeInfo) error
	Unreserve(ctx context.Context, c *CycleState, pod *state.PodInfo, node string)
}

// Permitter may refuse a pod that has its node, or have it wait.
type Permitter interface {
	Plugin
	// Permit returns nil, 0 to let the pod go on, a status to refuse it, or for how long (15 minutes at most) it waits for the plugin
	// to allow it through Handle.Waiting. It runs on the scheduling loop, after Reserve: it must not block.
	Permit(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) (*Status, time.Duration)
}

// PlacementFeasible judges a pod group while its pods are placed, and may refuse it as a whole.
type PlacementFeasible interface {
	Plugin
	// PlacementFeasible is told how many pods of the group have nodes and how many are left to try. nil: it may be bound as it stands.
	// A refusal with wait is no last word while pods are left. It must be quick.
	PlacementFeasible(g *state.PodGroup, scheduled, remaining int) (st *Status, wait bool)
}

// PreBinder prepares the node before the binding is written, off the scheduling loop.
type PreBinder interface {
	Plugin
	// PreBindPreFlight reports whether PreBind has something to do for the pod, which may take long. It runs on the scheduling loop.
	PreBindPreFlight(c *CycleState, pod *state.PodInfo, node string) bool
	// PreBind may block. An error that is a *Status is a verdict, any other makes the attempt be made again.
	PreBind(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) error
}

// Binder writes the binding, off the scheduling loop.
type Binder interface {
	Plugin
	// Bind returns ErrSkip to leave the pod to the next binder.
	Bind(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) error
}

// ErrSkip says that a binder does not bind this pod.
var ErrSkip = errors.New("not bound by this plugin")

// PostBinder is told of a pod that is bound, off the scheduling loop.
type PostBinder interface {
	Plugin
	PostBind(ctx context.Context, c *CycleState, pod *state.PodInfo, node string)
}

// QueueSorter orders the pods that are ready to be tried.
type QueueSorter interface {
	Plugin
	// Less reports whether a is tried before b. It must be quick: it is asked under the queue's lock.
	Less(a, b *QueuedPod) bool
}

// QueuedPod is a pod that waits to be tried.
type QueuedPod struct {
	Pod      *state.PodInfo
	Attempts int       // that have failed or are under way
	First    time.Time // when the queue first saw the pod
	Since    time.Time // when it last became ready to be tried
}

// PostFilterer tries to make room when no node fits.
type PostFilterer interface {
	Plugin
	// PostFilter returns the node where room is being made, or the reason why there will be none. The attempt's CycleState is a.Cycle.
	PostFilter(ctx context.Context, a *Attempt) (node, message string)
}

// EnqueueExtensions says which cluster events may make a pod fit that the plugin refused. A plugin that refuses pods and is no EnqueueExtensions
// gets them tried again on every event.
type EnqueueExtensions interface {
	Plugin
	EventsToRegister() []ClusterEventWithHint
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
