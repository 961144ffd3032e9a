// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	podkind "keelson/api/core/pod"
)

// drainedPDB is a PodDisruptionBudget, with the number of its pods that a drain evicts.
type drainedPDB struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
	evicted  map[string]int32 // by node
}

// drainedPDBs are the PodDisruptionBudgets by name.
type drainedPDBs []*drainedPDB

func newDrainedPDBs(budgets []*policyv1.PodDisruptionBudget) (all drainedPDBs) {
	for _, b := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // it covers no pods
		}
		all = append(all, &drainedPDB{b, selector, map[string]int32{}})
	}
	slices.SortFunc(all, func(a, b *drainedPDB) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// countEviction counts the eviction of a pod in its budgets. Eviction does not ask the budgets of pods that wait or
// have ended.
func (all drainedPDBs) countEviction(pod *corev1.Pod) {
	if !podkind.Active(pod) || pod.Status.Phase == corev1.PodPending {
		return
	}
	for _, b := range all {
		if b.Namespace == pod.Namespace && b.selector.Matches(labels.Set(pod.Labels)) && !b.mayEvictUnhealthy(pod) {
			b.evicted[pod.Spec.NodeName]++
		}
	}
}

// mayEvictUnhealthy reports whether a pod may be evicted regardless of the allowed disruptions, because it is not
// ready.
func (b *drainedPDB) mayEvictUnhealthy(pod *corev1.Pod) bool {
	if podkind.Ready(pod) {
		return false
	}
	policy := b.Spec.UnhealthyPodEvictionPolicy
	return policy != nil && *policy == policyv1.AlwaysAllow ||
		b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}

// notes name the budgets that would hold up the drain of these nodes.
func (all drainedPDBs) notes(nodes []string) (notes []string) {
	nodes = slices.Compact(slices.Sorted(slices.Values(nodes)))
	for _, b := range all {
		var evicted int32
		var on []string
		for _, node := range nodes {
			if n := b.evicted[node]; n > 0 {
				evicted += n
				on = append(on, fmt.Sprintf("%d on %s", n, node))
			}
		}
		if allowed := max(b.Status.DisruptionsAllowed, 0); evicted > allowed {
			notes = append(notes, fmt.Sprintf("PodDisruptionBudget %s/%s would hold up the drain: "+
				"disruptions allowed now: %d, its pods: %s", b.Namespace, b.Name, allowed, strings.Join(on, ", ")))
		}
	}
	return notes
}
