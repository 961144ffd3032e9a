// SPDX-License-Identifier: Apache-2.0

// Package preempt makes room for a pod that fits nowhere by having less important pods
// leave a node. The scheduling loop calls it after an attempt that found no node. The
// choice is a pure function of the attempt; victims are told, and deleted gracefully,
// by the scheduler's writers. It never binds: the pod waits for its victims like any other.
package preempt

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"keelson/scheduler/framework"
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
	// Extend has others choose among the nodes where room can be made and the victims there; nil: nobody. It returns new ones.
	Extend func(ctx context.Context, a *framework.Attempt, found []*framework.Preemption) ([]*framework.Preemption, error)
	// Event records an event on a victim.
	Event func(victim, preemptor *corev1.Pod, node string)
	// Chosen is told how many pods have to go for another; nil ok.
	Chosen func(victims int)
	// Percent and Least bound on how many nodes room is looked for: so many of 100 of the nodes, and at least so many.
	Percent, Least int
	Log            *slog.Logger
}

// Plugin is DefaultPreemption.
type Plugin struct {
	cfg Config

	mu   sync.Mutex
	busy map[types.UID]bool // pods whose victims are being told

	memory memory
}

// New makes the plugin; it starts nothing.
func New(cfg Config) *Plugin {
	return &Plugin{cfg: cfg, busy: map[types.UID]bool{}, memory: memory{classes: map[string]*tried{}}}
}

// Name is the plugin's.
func (*Plugin) Name() string { return Name }

// PostFilter chooses a node and has its victims deleted.
func (p *Plugin) PostFilter(ctx context.Context, a *framework.Attempt) (node, message string) {
	p.mu.Lock()
	busy := p.busy[a.Pod.Pod.UID]
	p.mu.Unlock()
	if busy {
		return a.NominatedBefore, ""
	}
	if why := notEligible(a); why != "" {
		return keep(a, why), "preemption: " + why
	}
	var budgets []*policyv1.PodDisruptionBudget
	if p.cfg.Budgets != nil {
		budgets = p.cfg.Budgets()
	}
	c, why := p.choose(ctx, a, budgets)
	if c == nil {
		return "", "preemption: " + why
	}
	a.Preemption = c
	p.mu.Lock()
	p.busy[a.Pod.Pod.UID] = true
	p.mu.Unlock()
	pod := a.Pod.Pod
	if p.cfg.Chosen != nil {
		p.cfg.Chosen(len(c.Victims))
	}
	p.cfg.Later(ctx, func(ctx context.Context) {
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.busy, pod.UID)
		}()
		for _, v := range c.Victims {
			if err := p.evict(ctx, v.Pod, pod, c.Node); err != nil && ctx.Err() == nil {
				p.cfg.Log.Warn("cannot preempt a pod", "pod", v.Key, "for", a.Pod.Key, "err", err)
			}
		}
	})
	return c.Node, ""
}

const victimsLeaving = "not eligible due to a terminating pod on the nominated node."

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
		return "not eligible due to preemptionPolicy=Never."
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
	found, why := candidates(a, budgets, percentTried, minTried, nil)
	if len(found) == 0 {
		return nil, why
	}
	return Best(found), ""
}

// Choose is Choose as the plugin is configured, with what it knows of budgets. Nobody else is asked.
func (p *Plugin) Choose(a *framework.Attempt) (*framework.Preemption, string) {
	var budgets []*policyv1.PodDisruptionBudget
	if p.cfg.Budgets != nil {
		budgets = p.cfg.Budgets()
	}
	found, why := candidates(a, budgets, p.cfg.Percent, p.cfg.Least, nil)
	if len(found) == 0 {
		return nil, why
	}
	return Best(found), ""
}

func (p *Plugin) choose(ctx context.Context, a *framework.Attempt, budgets []*policyv1.PodDisruptionBudget) (*framework.Preemption, string) {
	known := &p.memory
	if p.cfg.Extend != nil {
		known = nil // extenders take victims away from candidates
	}
	found, why := candidates(a, budgets, p.cfg.Percent, p.cfg.Least, known)
	if len(found) > 0 && p.cfg.Extend != nil {
		all := len(found)
		var err error
		if found, err = p.cfg.Extend(ctx, a, found); err != nil {
			return nil, err.Error()
		}
		why = fmt.Sprintf("extenders let no pod be preempted on the %d node(s) where that would help.", all)
		for _, c := range found {
			slices.SortFunc(c.Victims, byImportance)
		}
	}
	if len(found) == 0 {
		return nil, why
	}
	return Best(found), ""
}

// candidates are the nodes where room can be made, or why there are none. known may be nil.
func candidates(a *framework.Attempt, budgets []*policyv1.PodDisruptionBudget, percent, least int, known *memory) (found []*framework.Preemption, why string) {
	hopeful := make([]int, 0, len(a.Refused)) // places in a.Refused
	for i := range a.Refused {
		if a.Refused[i].Status.Code == framework.Unschedulable {
			hopeful = append(hopeful, i)
		}
	}
	var of *tried
	if len(budgets) == 0 && len(a.Refused) == len(a.Snapshot.Nodes) {
		of = known.of(a)
	}
	reasons := map[string]int{}
	tried := 0
	if len(hopeful) > 0 {
		enough := min(max(len(a.Snapshot.Nodes)*percent/100, least), len(hopeful))
		offset := rand.IntN(len(hopeful)) //nolint:gosec // where to begin is no secret
		for i := range hopeful {
			at := hopeful[(offset+i)%len(hopeful)]
			var c *framework.Preemption
			var st *framework.Status
			if n := a.Refused[at].Node; of != nil && a.Snapshot.Nodes[at] == n {
				c, st = of.victims(a, at)
			} else {
				c, st = victims(a, n, budgets)
			}
			tried++
			if st == nil {
				if found = append(found, c); len(found) >= enough {
					break
				}
				continue
			}
			for _, r := range st.Reasons {
				reasons[r]++
			}
		}
	}
	if len(found) > 0 {
		return found, ""
	}
	if rest := len(a.Snapshot.Nodes) - tried; rest > 0 {
		reasons["Preemption is not helpful for scheduling"] += rest
	}
	return nil, fmt.Sprintf("0/%d nodes are available: %s.", len(a.Snapshot.Nodes), framework.Histogram(reasons))
}

// evict tells a victim why, and deletes it with its own grace period.
func (p *Plugin) evict(ctx context.Context, victim, preemptor *corev1.Pod, node string) error {
	pods := p.cfg.Client.CoreV1().Pods(victim.Namespace)
	if !preempted(victim) {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": victim.UID},
			"status": map[string]any{"conditions": []corev1.PodCondition{{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
				Message:            preemptor.Spec.SchedulerName + ": preempting to accommodate a higher priority pod",
				LastTransitionTime: metav1.NewTime(time.Now()), ObservedGeneration: victim.Generation,
			}}},
		})
		if err != nil {
			return fmt.Errorf("encode condition: %w", err)
		}
		if _, err := pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return ignoreGone(err)
		}
	}
	err := pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	if err != nil {
		return ignoreGone(err)
	}
	p.cfg.Event(victim, preemptor, node)
	return nil
}

// ignoreGone passes on errors, except that a victim is gone already or has been replaced by a namesake.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
