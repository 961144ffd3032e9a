// SPDX-License-Identifier: Apache-2.0

// Package preempt is the plugin DefaultPreemption: it evicts less important pods so that a pod or pod group that fits
// nowhere fits on a node. The scheduling loop calls it after an attempt that found no node. The choice of the victims
// is a pure function of the attempt; the scheduler's writers evict them. It never binds: the pod waits in the queue
// until its victims are gone.
package preempt

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/client"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Name is the plugin's name.
const Name = "DefaultPreemption"

// Config is what preemption needs from the scheduler.
type Config struct {
	Client client.Interface
	// Later runs a job soon, off the scheduling loop.
	Later func(ctx context.Context, job func(context.Context))
	// Budgets lists all disruption budgets; nil: there are none.
	Budgets func() []*policyv1.PodDisruptionBudget
	// Groups are the pod groups whose pods may have to be evicted together; nil: there are none. NodeOf returns the
	// node of a pod.
	Groups *state.Groups
	NodeOf func(types.UID) (node string, assumed bool)
	// ProcessExtenders calls the extenders to choose among the candidate nodes and their victims; nil: there are none.
	// It does not modify found.
	ProcessExtenders func(
		ctx context.Context, a *framework.Attempt, found []*framework.Preemption,
	) ([]*framework.Preemption, error)
	// Unbind takes a pod's node from it before it is bound, and returns the pod to the queue; false: it is bound. nil:
	// all victims are bound.
	Unbind func(types.UID) bool
	// RecordPreempted records an event on a victim. deleted: the victim was bound.
	RecordPreempted func(victim, preemptor *corev1.Pod, node string, deleted bool)
	// Evictions are shared by the plugins of all profiles; nil: the plugin has its own.
	Evictions *Evictions
	// EvictionsDone is called when the evictions of all victims of a pod are written, with the error of one that
	// failed; nil ok.
	EvictionsDone func(preemptor *corev1.Pod, err error)
	// ObserveVictims is called with the number of victims of each preemption; nil ok.
	ObserveVictims func(victims int)
	// MinCandidateNodesPercentage of the nodes are looked for as candidates, but at least MinCandidateNodesAbsolute
	// nodes.
	MinCandidateNodesPercentage, MinCandidateNodesAbsolute int
	Log                                                    *slog.Logger
}

// Plugin is DefaultPreemption.
type Plugin struct {
	cfg Config

	dryRuns dryRunCache
	pdbs    pdbs
}

// New returns the plugin; it starts nothing.
func New(cfg Config) *Plugin {
	if cfg.Evictions == nil {
		cfg.Evictions = NewEvictions()
	}
	return &Plugin{cfg: cfg, dryRuns: dryRunCache{classes: map[string]*classDryRuns{}}}
}

// Descriptor returns what the plugin does.
func (p *Plugin) Descriptor() *framework.Plugin {
	return &framework.Plugin{
		Name:            Name,
		PostFilter:      p.PostFilter,
		GroupPostFilter: p.PodGroupPostFilter,
		Victims:         p.Choose,
		GroupVictims:    p.ChooseForGroup,
	}
}

// PostFilter chooses a node and evicts its victims.
func (p *Plugin) PostFilter(ctx context.Context, attempt *framework.Attempt) (node, message string) {
	if p.cfg.Evictions.writing(attempt.Pod.Pod.UID) {
		return attempt.NominatedBefore, ""
	}
	if why := ineligible(attempt); why != "" {
		return nodeIfTerminating(attempt, why), "preemption: " + why
	}
	c, why := p.choose(ctx, attempt)
	if c == nil {
		return "", "preemption: " + why
	}
	attempt.Preemption = c
	p.evictAll(ctx, attempt.Pod.Pod.UID, attempt.Pod.Pod, c.Victims, func(i int) string {
		return c.NodeOf(c.Victims[i])
	})
	return c.Node, fmt.Sprintf("preemption: found a potential placement for pod on node %s, preempting %d victims",
		c.Node, len(c.Victims))
}

const (
	messageVictimsTerminating = "not eligible due to a terminating pod on the nominated node."
	messagePreemptNever       = "not eligible due to preemptionPolicy=Never."
)

// nodeIfTerminating returns the nominated node of a pod whose victims are terminating.
func nodeIfTerminating(a *framework.Attempt, why string) string {
	if why == messageVictimsTerminating {
		return a.NominatedBefore
	}
	return ""
}

// ineligible returns why a pod may not preempt: its preemptionPolicy is Never, or its victims are terminating; empty:
// it may.
func ineligible(attempt *framework.Attempt) string {
	if policy := attempt.Pod.Pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return messagePreemptNever
	}
	n := attempt.Snapshot.Node(attempt.NominatedBefore)
	if n == nil {
		return ""
	}
	for _, r := range attempt.Refused {
		if r.Node == n && r.Status.Code == framework.Unresolvable {
			return "" // the victims on that node do not help any more
		}
	}
	for _, p := range n.Pods {
		if p.Priority < attempt.Pod.Priority && p.Pod.DeletionTimestamp != nil && isPreempted(p.Pod) {
			return messageVictimsTerminating
		}
	}
	return ""
}

func isPreempted(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// The default number of candidate nodes, as in kube-scheduler.
const (
	minCandidateNodes        = 100
	candidateNodesPercentage = 10
)

// Choose returns the best candidate node with its victims, or why there is none.
func Choose(a *framework.Attempt, budgets []*policyv1.PodDisruptionBudget) (*framework.Preemption, string) {
	found := findCandidates(a, newPDBs(budgets), nil, candidateNodesPercentage, minCandidateNodes, nil)
	return found.best(), found.message
}

// Choose is the function Choose with the configuration of the plugin. It calls no extenders.
func (p *Plugin) Choose(a *framework.Attempt) (*framework.Preemption, string) {
	found := findCandidates(a, p.currentPDBs(), p.groupUnits(a), p.cfg.MinCandidateNodesPercentage,
		p.cfg.MinCandidateNodesAbsolute, nil)
	return found.best(), found.message
}

// currentPDBs returns the current budgets.
func (p *Plugin) currentPDBs() *pdbs {
	var all []*policyv1.PodDisruptionBudget
	if p.cfg.Budgets != nil {
		all = p.cfg.Budgets()
	}
	p.pdbs.update(all)
	return &p.pdbs
}

func (p *Plugin) choose(ctx context.Context, attempt *framework.Attempt) (*framework.Preemption, string) {
	withExtenders := p.cfg.ProcessExtenders != nil && attempt.CallExtenders != nil
	cache := &p.dryRuns
	if withExtenders {
		cache = nil // extenders take victims away from candidates
	}
	groups := p.groupUnits(attempt)
	found := findCandidates(attempt, p.currentPDBs(), groups, p.cfg.MinCandidateNodesPercentage,
		p.cfg.MinCandidateNodesAbsolute, cache)
	if !withExtenders || len(found.nodes) == 0 {
		return found.best(), found.message
	}
	left, err := p.cfg.ProcessExtenders(ctx, attempt, found.nodes)
	if err != nil {
		return nil, err.Error()
	}
	if len(left) == 0 {
		return nil, fmt.Sprintf("extenders rejected preemption on all %d candidate node(s).", len(found.nodes))
	}
	for _, c := range left {
		groups.addGroupPods(c)
		slices.SortFunc(c.Victims, compareImportance)
	}
	return Best(left), ""
}

// candidateSet has the candidate nodes and their costs, or a message why there are none.
type candidateSet struct {
	nodes   []*framework.Preemption
	costs   []cost
	message string
}

func (h *candidateSet) best() *framework.Preemption {
	if len(h.nodes) == 0 {
		return nil
	}
	return best(h.nodes, h.costs)
}

// potentialPlaces returns the places in the snapshot of the nodes where evictions may help. inOrder: the attempt
// refused all nodes, in their order.
func potentialPlaces(attempt *framework.Attempt) (potential []int32, inOrder bool) {
	inOrder = len(attempt.Refused) == len(attempt.Snapshot.Nodes)
	for i := range attempt.Refused {
		if attempt.Refused[i].Status.Code != framework.Unschedulable {
			continue
		}
		if potential == nil {
			potential = make([]int32, 0, len(attempt.Refused)-i)
		}
		place := int32(i) // there are fewer nodes
		if !inOrder || attempt.Snapshot.Nodes[i] != attempt.Refused[i].Node {
			place = attempt.Snapshot.Place(attempt.Refused[i].Node.Name)
		}
		if place >= 0 {
			potential = append(potential, place)
		}
	}
	return potential, inOrder
}

// findCandidates finds the nodes on which the pod fits after evictions. groups and cache may be nil.
func findCandidates(
	attempt *framework.Attempt, budgets *pdbs, groups *groupUnits, percent, least int, cache *dryRunCache,
) *candidateSet {
	potential, inOrder := potentialPlaces(attempt)
	var cached *classDryRuns
	own := -1 // the nominated node, where other pods count than for the class
	if inOrder {
		if cached = cache.forPod(attempt); cached != nil {
			own = attempt.Snapshot.NominatedPlace(attempt.Pod.Pod.UID)
		}
	}
	found := &candidateSet{}
	statuses := map[*framework.Status]int{}
	tried := 0
	if len(potential) > 0 {
		enough := min(max(len(attempt.Snapshot.Nodes)*percent/100, least), len(potential))
		found.nodes = make([]*framework.Preemption, 0, enough)
		found.costs = make([]cost, 0, enough)
		offset := rand.IntN(len(potential)) // where to begin is no secret
		for i := range potential {
			place := int(potential[(offset+i)%len(potential)])
			var c *dryRunResult
			if cached != nil && place != own {
				c = cached.dryRun(attempt, place, budgets, groups)
			} else {
				c = dryRunOn(attempt, place, budgets, groups)
			}
			tried++
			if c.status == nil {
				found.nodes = append(found.nodes, c.candidate)
				found.costs = append(found.costs, c.cost)
				if len(found.nodes) >= enough {
					break
				}
				continue
			}
			statuses[c.status]++
		}
	}
	if len(found.nodes) == 0 {
		reasons := map[string]int{}
		for st, n := range statuses {
			for _, r := range st.Reasons {
				reasons[r] += n
			}
		}
		if rest := len(attempt.Snapshot.Nodes) - tried; rest > 0 {
			reasons["Preemption is not helpful for scheduling"] += rest
		}
		found.message = fmt.Sprintf("0/%d nodes are available: %s.", len(attempt.Snapshot.Nodes),
			framework.Histogram(reasons))
	}
	return found
}
