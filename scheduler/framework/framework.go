// SPDX-License-Identifier: Apache-2.0

// Package framework is the contract between the scheduling loop and its plugins, like kube-scheduler's scheduling
// framework. The scheduler runs the plugins of a Profile; package plugins implements most of them. Plugins never call
// each other, never do I/O in a filter or score, and never modify their arguments. The package itself never writes to
// the API server.
//
// A plugin is one descriptor, Plugin: a struct of functions. The functions are the extension points of an attempt, with
// Kubernetes' names; those that the plugin does not need are nil. In their order:
//
//	PreEnqueue(pod)                      whether the pod may be tried at all
//	QueueSort(a, b)                      the order of the pods: one plugin for all profiles
//	PreFilter(cycle, pod, snapshot)      once per pod -> NodeFilter: its Filter(node) -> *Status, nil: the pod fits
//	PostFilter(attempt)                  no node fits: make room by preemption
//	PreScore(cycle, pod, snapshot, ...)  once per pod -> NodeScorer: its Score(node), Normalize(scores)
//	Reserve, Unreserve                   reserve what the pod needs; undone if a later step fails
//	PlacementFeasible                    for a pod group: whether enough of its pods have nodes
//	Permit                               allow the pod, refuse it, or make it wait
//	PreBind                              prepare the node             } off the scheduling loop
//	Bind, PostBind                       write the binding; react     }
//
// A PreFilter or PreScore that does not apply to a pod returns the zero value; the plugin is then skipped for this pod.
// A plugin stores data for a later extension point in the attempt's CycleState, under a Key. It reads objects other
// than nodes and pods from its Handle's informers. Events are the events that may make a refused pod schedulable.
//
// Pod groups use PlacementFeasible (above), and GroupPostFilter instead of PostFilter (group.go).
//
// The engine of package core runs the filters and scorers. The other fields of NodeFilter and NodeScorer let it call
// them less often:
//
//	NodeLocal            the result depends on one node only: it is called once for all pods of a class
//	FilterAll, ScoreAll  it filters or scores all nodes in one call
//	NodeNames            it knows the few nodes that can pass
//	Normalize == nil     its scores need no Normalize
//	Rules                its score is a sum over rules, which explain shows one by one
//	Adjust               it can assume added or removed pods: preemption and nominated pods need that
package framework

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
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

// Rejection returns the status with which a plugin refused a pod; nil: err is another error.
func Rejection(err error) *Status {
	var st *Status
	if errors.As(err, &st) && st.Code != Failed {
		return st
	}
	return nil
}

// Plugin describes a plugin: what it does at each extension point. A nil function means that it does nothing there. The
// functions that run on the scheduling loop (all before PreBind) must be quick and must not block.
type Plugin struct {
	// Name is the name that configurations, events and metrics use.
	Name string
	// PreEnqueue gates pods: a pod does not enter the active queue until PreEnqueue returns nil.
	PreEnqueue func(pod *state.PodInfo) *Status
	// QueueSort reports whether a is tried before b. It is called under the queue's lock.
	QueueSort func(a, b *QueuedPod) bool
	// PreFilter returns the filter of nodes for a pod. The zero NodeFilter accepts every node; a status refuses all
	// nodes.
	PreFilter func(c *CycleState, pod *state.PodInfo, s *state.Snapshot) (NodeFilter, *Status)
	// PostFilter tries to make room, by preemption, if no node fits. It returns the nominated node, or a message with
	// the reason why no room can be made. The attempt's CycleState is a.Cycle.
	PostFilter func(ctx context.Context, a *Attempt) (node, message string)
	// GroupPostFilter does the same for a pod group. It returns the nominated nodes by pod, and a message for the user.
	// Empty: no room is made.
	GroupPostFilter func(ctx context.Context, a *GroupAttempt) (nominated map[types.UID]string, message string)
	// Victims returns the pods that PostFilter would evict, and evicts none; nil: there are none, and why is the
	// reason. GroupVictims does the same for a pod group. A simulation uses them.
	Victims      func(a *Attempt) (p *Preemption, why string)
	GroupVictims func(a *GroupAttempt) (p *Preemption, why string)
	// PreScore returns the scorer of nodes for a pod. The zero NodeScorer treats all nodes as equal. nodes are the
	// feasible nodes.
	PreScore func(c *CycleState, pod *state.PodInfo, s *state.Snapshot, nodes []*state.NodeInfo) NodeScorer
	// ScoreFacts returns what the score of a node is computed from, for explain to show. It is called for a few nodes
	// of each pod that gets one.
	ScoreFacts func(pod *state.PodInfo, s *state.Snapshot, n *state.NodeInfo) *decisions.ScoreFacts
	// Reserve reserves what a pod needs besides the node's resources, such as volumes. An error that is a *Status
	// refuses the pod; after any other error the attempt is repeated. Unreserve undoes it, and may be called without a
	// Reserve.
	Reserve   func(ctx context.Context, c *CycleState, pod *state.PodInfo, node *state.NodeInfo) error
	Unreserve func(ctx context.Context, c *CycleState, pod *state.PodInfo, node string)
	// PlacementFeasible decides about a pod group while its pods get nodes, and may refuse it as a whole. It gets the
	// number of the group's pods that have nodes, and of those still to be tried. nil: the pods with nodes may be
	// bound. With wait, a refusal is not final as long as pods remain to be tried.
	PlacementFeasible func(g *state.PodGroup, scheduled, remaining int) (st *Status, wait bool)
	// Permit may refuse a pod that has a node, or delay its binding. It returns nil, 0 to allow the pod; a status to
	// refuse it; or nil and the time-out (at most MaxWait) within which the plugin must allow the pod through
	// Handle.Waiting. It runs after Reserve.
	Permit func(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) (*Status, time.Duration)
	// PreBind prepares the node before the binding is written. It may block. An error that is a *Status refuses the
	// pod; after any other error the attempt is repeated. PreBindPreFlight, on the scheduling loop, reports whether
	// PreBind has work to do for the pod, which may take long; nil: it never does.
	PreBind          func(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) error
	PreBindPreFlight func(c *CycleState, pod *state.PodInfo, node string) bool
	// Bind writes the binding. It returns ErrSkip to leave the pod to the next binder.
	Bind func(ctx context.Context, c *CycleState, pod *state.PodInfo, node string) error
	// PostBind is called after a pod was bound.
	PostBind func(ctx context.Context, c *CycleState, pod *state.PodInfo, node string)
	// Events are the cluster events that may make a pod schedulable which the plugin refused. nil: any event may; empty
	// and not nil: none does.
	Events []ClusterEventWithHint
}

// ErrSkip means that a Bind does not bind this pod.
var ErrSkip = errors.New("not bound by this plugin")

// NodeFilter filters nodes for one pod.
type NodeFilter struct {
	// Filter returns nil if the pod fits on the node. It must be safe for concurrent use.
	Filter func(n *state.NodeInfo) *Status
	// NodeLocal: the result depends only on the NodeInfo, on the labels, taints and images of all nodes, and on those
	// parts of the pod that state.PodInfo.AppendClass covers. The Engine calls Filter once per version of a node and
	// class of pods.
	NodeLocal bool
	// FilterAll, if not nil, is faster than Filter for all nodes. It sets the elements of out that are nil to the
	// result of Filter, and does not change the others. out is indexed like the snapshot's Nodes.
	FilterAll func(out []*Status)
	// NodeNames are the names of the only nodes that can pass, like kube-scheduler's PreFilterResult; nil: any node
	// can. Filter still decides.
	NodeNames []string
	// Adjust, if not nil, means that the result depends on pods on other nodes too. It returns a filter that assumes
	// that the added pods are on node n and the removed pods are not; it does not change this one. Preemption uses it.
	Adjust func(n *state.NodeInfo, added, removed []*state.PodInfo) NodeFilter
	// Explain, if not nil, explains a refusal in more detail than the reason. It returns what is missing ("memory: asks
	// 4Gi, free 1.2Gi of 3.8Gi"), what would help ("fits on n if ..."; may be empty) and the distance of the node from
	// fitting (0: almost fits; 1 and more: cannot fit), to find the nearest.
	Explain func(pod *state.PodInfo, n *state.NodeInfo, st *Status) (short, hint string, distance float64)
	// Distance, if not nil, returns Explain's distance, and whether Explain has a hint, and is much cheaper: only the
	// nearest of many refused nodes are explained.
	Distance func(pod *state.PodInfo, n *state.NodeInfo, st *Status) (distance float64, fixable bool)
	// CountsMore, if not nil, means that Filter counts only nodes that other filters accept. It reports whether that
	// may refuse a node once they accept it, by their tolerations or otherwise.
	CountsMore func(n *state.NodeInfo, tolerations bool) bool
}

// NodeScorer scores nodes for one pod.
type NodeScorer struct {
	Score func(n *state.NodeInfo) int64
	// Normalize scales the scores, which are in the order of the calls of Score, to 0..MaxScore; higher is better. nil:
	// the scores are such already. Only the plugin CELPolicy, which sums weighted rules, may exceed this range.
	Normalize func(scores []int64)
	// NodeLocal is as in NodeFilter.
	NodeLocal bool
	// ScoreAll, if not nil, is faster than Score for many nodes. It sets scores[i] to the Score of the node at index
	// places[i] of the snapshot's Nodes. It is called instead of Score.
	ScoreAll func(places []int32, scores []int64)
	// Rules, if not nil, has the results of the rules of which the score is the weighted sum, for explain to show.
	Rules RuleResults
}

// RuleResults are the results of a scorer's rules.
type RuleResults interface {
	Rules() []Rule
	// RuleResult returns the result of a rule for the at-th scored node: its raw value, and the same normalized to
	// 0..MaxScore. false: no result.
	RuleResult(at, rule int) (raw float64, score int64, ok bool)
}

// Rule is a rule of a scorer: the policy, the source of the policy (From), and the field of the policy that contains
// the Expression.
type Rule struct {
	Policy, From, Field, Expression string
	Weight                          int64
}

// QueuedPod is a pod in the scheduling queue.
type QueuedPod struct {
	Pod      *state.PodInfo
	Attempts int       // number of attempts, the current one included
	First    time.Time // when the pod was added to the queue
	Since    time.Time // when it last entered the active or the unschedulable queue
	// Flushed: no event made it ready for this attempt, it had waited for too long.
	Flushed bool
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
