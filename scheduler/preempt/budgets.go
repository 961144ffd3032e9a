// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/state"
)

// guards are disruption budgets with their selectors parsed. They belong to the scheduling loop.
type guards struct {
	known  map[types.NamespacedName]*guard
	inside map[string][]*guard // by namespace, each in the order of the budgets' names
	// rules is another number whenever it may have changed which pods budgets cover, now whenever anything of a budget has.
	rules, now int64
}

type guard struct {
	budget   *policyv1.PodDisruptionBudget
	selector labels.Selector // nil: it selects nothing
}

// newGuards reads budgets for one choice.
func newGuards(budgets []*policyv1.PodDisruptionBudget) *guards {
	g := &guards{}
	g.update(budgets)
	return g
}

// update takes in all budgets that there are. They are shared and never modified, so one that is the same has not changed.
func (g *guards) update(budgets []*policyv1.PodDisruptionBudget) {
	same := len(budgets) == len(g.known)
	for _, b := range budgets {
		if k := g.known[nameOf(b)]; same && (k == nil || k.budget != b) {
			same = false
		}
	}
	if same {
		return
	}
	before := g.known
	rules := len(budgets) != len(before)
	g.known, g.inside = make(map[types.NamespacedName]*guard, len(budgets)), map[string][]*guard{}
	for _, b := range budgets {
		k := &guard{budget: b}
		if old := before[nameOf(b)]; old != nil && (old.budget == b || old.budget.UID == b.UID && old.budget.Generation == b.Generation && b.Generation > 0) {
			k.selector = old.selector
		} else {
			k.selector, rules = selectorOf(b), true
		}
		g.known[nameOf(b)] = k
		g.inside[b.Namespace] = append(g.inside[b.Namespace], k)
	}
	for _, list := range g.inside {
		slices.SortFunc(list, func(a, b *guard) int { return strings.Compare(a.budget.Name, b.budget.Name) })
	}
	g.now++
	if rules {
		g.rules++
	}
}

func nameOf(b *policyv1.PodDisruptionBudget) types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

func selectorOf(b *policyv1.PodDisruptionBudget) labels.Selector {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil || s.Empty() {
		return nil
	}
	return s
}

func (k *guard) covers(pod *corev1.Pod) bool {
	return len(pod.Labels) > 0 && k.selector != nil && k.selector.Matches(labels.Set(pod.Labels))
}

// cover tells whether any of the pods is a budget's.
func (g *guards) cover(pods []*state.PodInfo) bool {
	return slices.ContainsFunc(pods, func(p *state.PodInfo) bool {
		return slices.ContainsFunc(g.inside[p.Pod.Namespace], func(k *guard) bool { return k.covers(p.Pod) })
	})
}

// split tells pods whose eviction would go below a budget from the others. Pods take from budgets in order.
func (g *guards) split(pods []*state.PodInfo) (protected, free []*state.PodInfo) {
	if len(g.known) == 0 {
		return nil, pods
	}
	taken := map[*guard]int32{}
	for _, p := range pods {
		violates := false
		for _, k := range g.inside[p.Pod.Namespace] {
			if !k.covers(p.Pod) {
				continue
			}
			if _, counted := k.budget.Status.DisruptedPods[p.Pod.Name]; counted {
				continue // the API server counts it already
			}
			if taken[k]++; taken[k] > k.budget.Status.DisruptionsAllowed {
				violates = true
			}
		}
		if violates {
			protected = append(protected, p)
		} else {
			free = append(free, p)
		}
	}
	return protected, free
}
