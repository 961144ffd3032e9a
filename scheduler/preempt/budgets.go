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

// pdbs are PodDisruptionBudgets with their selectors parsed. They belong to the scheduling loop.
type pdbs struct {
	byName      map[types.NamespacedName]*pdb
	byNamespace map[string][]*pdb // by namespace, each in the order of the budgets' names
	// version changes with any PodDisruptionBudget, selectorVersion only if they may match other pods than before.
	selectorVersion, version int64
}

type pdb struct {
	budget   *policyv1.PodDisruptionBudget
	selector labels.Selector
}

// newPDBs parses budgets for one choice.
func newPDBs(budgets []*policyv1.PodDisruptionBudget) *pdbs {
	g := &pdbs{}
	g.update(budgets)
	return g
}

// update sets all budgets that there are. They are shared and never modified, so the same pointer means the same
// budget.
func (g *pdbs) update(budgets []*policyv1.PodDisruptionBudget) {
	same := len(budgets) == len(g.byName)
	for _, b := range budgets {
		if k := g.byName[nameOf(b)]; same && (k == nil || k.budget != b) {
			same = false
		}
	}
	if same {
		return
	}
	before := g.byName
	selectorsChanged := len(budgets) != len(before)
	g.byName = make(map[types.NamespacedName]*pdb, len(budgets))
	g.byNamespace = map[string][]*pdb{}
	for _, b := range budgets {
		k := &pdb{budget: b}
		if old := before[nameOf(b)]; old != nil &&
			(old.budget == b || old.budget.UID == b.UID && old.budget.Generation == b.Generation && b.Generation > 0) {
			k.selector = old.selector
		} else {
			k.selector = selectorOf(b)
			selectorsChanged = true
		}
		g.byName[nameOf(b)] = k
		g.byNamespace[b.Namespace] = append(g.byNamespace[b.Namespace], k)
	}
	for _, list := range g.byNamespace {
		slices.SortFunc(list, func(a, b *pdb) int { return strings.Compare(a.budget.Name, b.budget.Name) })
	}
	g.version++
	if selectorsChanged {
		g.selectorVersion++
	}
}

func nameOf(b *policyv1.PodDisruptionBudget) types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// selectorOf returns a budget's selector. An empty one selects all pods of the namespace, those without labels too.
func selectorOf(b *policyv1.PodDisruptionBudget) labels.Selector {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return labels.Nothing()
	}
	return s
}

func (k *pdb) matches(pod *corev1.Pod) bool { return k.selector.Matches(labels.Set(pod.Labels)) }

// matchAny reports whether a budget matches any of the pods.
func (g *pdbs) matchAny(pods []*state.PodInfo) bool {
	return slices.ContainsFunc(pods, func(p *state.PodInfo) bool {
		return slices.ContainsFunc(g.byNamespace[p.Pod.Namespace], func(k *pdb) bool { return k.matches(p.Pod) })
	})
}

// splitByViolation separates the pods whose eviction violates a budget from the others. It counts the disruptions in
// the order of the pods.
func (g *pdbs) splitByViolation(pods []*state.PodInfo) (violating, nonViolating []*state.PodInfo) {
	if len(g.byName) == 0 {
		return nil, pods
	}
	disruptions := map[*pdb]int32{}
	for _, info := range pods {
		violates := false
		for _, k := range g.byNamespace[info.Pod.Namespace] {
			if !k.matches(info.Pod) {
				continue
			}
			if _, counted := k.budget.Status.DisruptedPods[info.Pod.Name]; counted {
				continue // the API server counts it already
			}
			if disruptions[k]++; disruptions[k] > k.budget.Status.DisruptionsAllowed {
				violates = true
			}
		}
		if violates {
			violating = append(violating, info)
		} else {
			nonViolating = append(nonViolating, info)
		}
	}
	return violating, nonViolating
}
