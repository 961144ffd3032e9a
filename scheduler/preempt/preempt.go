// SPDX-License-Identifier: Apache-2.0

// Package preempt makes room for a pod that fits nowhere by having less important pods
// leave a node. The scheduling loop calls it after an attempt that found no node. The
// choice is a pure function of the attempt; victims are told, and deleted gracefully,
// by the scheduler's writers. It never binds: the pod waits for its victims like any other.
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
	"k8s.io/client-go/kubernetes"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Name is the plugin's.
const Name = "DefaultPreemption"

// Config is what preemption needs from the scheduler.
type Config struct {
	Client kubernetes.Interface
	// Later runs a job soon, off the scheduling loop.
	Later func(ctx context.Context, job func(context.Context))
	// Budgets lists all disruption budgets; nil: there are none.
	Budgets func() []*policyv1.PodDisruptionBudget
	// Groups are the pod groups whose pods may have to leave together; nil: there are none. Where tells which node a pod has.
	Groups *state.Groups
	Where  func(types.UID) (node string, assumed bool)
	// Extend has others choose among the nodes where room can be made and the victims there; nil: nobody. It returns new ones.
	Extend func(ctx context.Context, a *framework.Attempt, found []*framework.Preemption) ([]*framework.Preemption, error)
	// Event records an event on a victim.
	Event func(victim, preemptor *corev1.Pod, node string)
	// Evictions are shared by the plugins of all profiles; nil: the plugin has its own.
	Evictions *Evictions
	// Ended is told when all victims of a pod have been told, or of the error that kept one from it; nil ok.
	Ended func(preemptor *corev1.Pod, err error)
	// Chosen is told how many pods have to go for another; nil ok.
	Chosen func(victims int)
	// Percent and Least bound on how many nodes room is looked for: so many of 100 of the nodes, and at least so many.
	Percent, Least int
	Log            *slog.Logger
}

// Plugin is DefaultPreemption.
type Plugin struct {
	cfg Config

	memory memory
	guards guards
}

// New makes the plugin; it starts nothing.
func New(cfg Config) *Plugin {
	if cfg.Evictions == nil {
		cfg.Evictions = NewEvictions()
	}
	return &Plugin{cfg: cfg, memory: memory{classes: map[string]*tried{}}}
}

// Name is the plugin's.
func (*Plugin) Name() string { return Name }

// PostFilter chooses a node and has its victims deleted.
func (p *Plugin) PostFilter(ctx context.Context, a *framework.Attempt) (node, message string) {
	if p.cfg.Evictions.busy(a.Pod.Pod.UID) {
		return a.NominatedBefore, ""
	}
	if why := notEligible(a); why != "" {
		return keep(a, why), "preemption: " + why
	}
	c, why := p.choose(ctx, a)
	if c == nil {
		return "", "preemption: " + why
	}
	a.Preemption = c
	p.evictAll(ctx, a.Pod.Pod.UID, a.Pod.Pod, c.Victims, func(i int) string { return c.NodeOf(c.Victims[i]) })
	return c.Node, ""
}

const (
	victimsLeaving = "not eligible due to a terminating pod on the nominated node."
	preemptsNever  = "not eligible due to preemptionPolicy=Never."
)

// keep returns the node a pod waits for already.
func keep(a *framework.Attempt, why string) string {
	if why == victimsLeaving {
		return a.NominatedBefore
	}
	return ""
}

// notEligible says why a pod may not preempt: it does not want to, or its victims are on their way out.
func notEligible(a *framework.Attempt) string {
	if policy := a.Pod.Pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return preemptsNever
	}
	n := a.Snapshot.Node(a.NominatedBefore)
	if n == nil {
		return ""
	}
	for _, r := range a.Refused {
		if r.Node == n && r.Status.Code == framework.Unresolvable {
			return "" // the room made there is of no use any more
		}
	}
	for _, p := range n.Pods {
		if p.Priority < a.Pod.Priority && p.Pod.DeletionTimestamp != nil && preempted(p.Pod) {
			return victimsLeaving
		}
	}
	return ""
}

func preempted(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// Of a large cluster only a part is tried, as upstream does.
const (
	minTried     = 100
	percentTried = 10
)

// Choose returns the node where room costs least, or why there is none.
func Choose(a *framework.Attempt, budgets []*policyv1.PodDisruptionBudget) (*framework.Preemption, string) {
	found := candidates(a, newGuards(budgets), nil, percentTried, minTried, nil)
	return found.best(), found.why
}

// Choose is Choose as the plugin is configured, with what it knows of budgets. Nobody else is asked.
func (p *Plugin) Choose(a *framework.Attempt) (*framework.Preemption, string) {
	found := candidates(a, p.budgets(), p.together(a), p.cfg.Percent, p.cfg.Least, nil)
	return found.best(), found.why
}

// budgets are those of now.
func (p *Plugin) budgets() *guards {
	var all []*policyv1.PodDisruptionBudget
	if p.cfg.Budgets != nil {
		all = p.cfg.Budgets()
	}
	p.guards.update(all)
	return &p.guards
}

func (p *Plugin) choose(ctx context.Context, a *framework.Attempt) (*framework.Preemption, string) {
	asked := p.cfg.Extend != nil && a.Outside != nil
	known := &p.memory
	if asked {
		known = nil // extenders take victims away from candidates
	}
	whole := p.together(a)
	found := candidates(a, p.budgets(), whole, p.cfg.Percent, p.cfg.Least, known)
	if !asked || len(found.nodes) == 0 {
		return found.best(), found.why
	}
	left, err := p.cfg.Extend(ctx, a, found.nodes)
	if err != nil {
		return nil, err.Error()
	}
	if len(left) == 0 {
		return nil, fmt.Sprintf("extenders let no pod be preempted on the %d node(s) where that would help.", len(found.nodes))
	}
	for _, c := range left {
		whole.complete(c)
		slices.SortFunc(c.Victims, byImportance)
	}
	return Best(left), ""
}

// helpful are nodes where room can be made, each with what that costs, or why there are none.
type helpful struct {
	nodes []*framework.Preemption
	hurts []hurt
	why   string
}

func (h *helpful) best() *framework.Preemption {
	if len(h.nodes) == 0 {
		return nil
	}
	return best(h.nodes, h.hurts)
}

// hopefulPlaces are the places in the snapshot of nodes where fewer pods could help. inOrder: the attempt refused all nodes, in their order.
func hopefulPlaces(a *framework.Attempt) (hopeful []int32, inOrder bool) {
	hopeful, inOrder = make([]int32, 0, len(a.Refused)), len(a.Refused) == len(a.Snapshot.Nodes)
	for i := range a.Refused {
		if a.Refused[i].Status.Code != framework.Unschedulable {
			continue
		}
		place := int32(i) //nolint:gosec // there are fewer nodes
		if !inOrder || a.Snapshot.Nodes[i] != a.Refused[i].Node {
			place = a.Snapshot.Place(a.Refused[i].Node.Name)
		}
		if place >= 0 {
			hopeful = append(hopeful, place)
		}
	}
	return hopeful, inOrder
}

// candidates looks for nodes where room can be made. whole and known may be nil.
func candidates(a *framework.Attempt, budgets *guards, whole *together, percent, least int, known *memory) *helpful {
	hopeful, inOrder := hopefulPlaces(a)
	var of *tried
	own := -1 // where others count than for the class
	if inOrder {
		if of = known.of(a); of != nil {
			own = a.Snapshot.NominatedPlace(a.Pod.Pod.UID)
		}
	}
	found, whyNot, tried := &helpful{}, map[*framework.Status]int{}, 0
	if len(hopeful) > 0 {
		enough := min(max(len(a.Snapshot.Nodes)*percent/100, least), len(hopeful))
		found.nodes, found.hurts = make([]*framework.Preemption, 0, enough), make([]hurt, 0, enough)
		offset := rand.IntN(len(hopeful)) //nolint:gosec // where to begin is no secret
		for i := range hopeful {
			place := int(hopeful[(offset+i)%len(hopeful)])
			var c *answer
			if of != nil && place != own {
				c = of.victims(a, place, budgets, whole)
			} else {
				c = ask(a, place, budgets, whole)
			}
			tried++
			if c.why == nil {
				found.nodes, found.hurts = append(found.nodes, c.found), append(found.hurts, c.hurt)
				if len(found.nodes) >= enough {
					break
				}
				continue
			}
			whyNot[c.why]++
		}
	}
	if len(found.nodes) == 0 {
		reasons := map[string]int{}
		for st, n := range whyNot {
			for _, r := range st.Reasons {
				reasons[r] += n
			}
		}
		if rest := len(a.Snapshot.Nodes) - tried; rest > 0 {
			reasons["Preemption is not helpful for scheduling"] += rest
		}
		found.why = fmt.Sprintf("0/%d nodes are available: %s.", len(a.Snapshot.Nodes), framework.Histogram(reasons))
	}
	return found
}
