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

// readPDBs prepares the budgets for countEviction.
func (t *simulation) readPDBs() {
	for _, b := range t.source.Budgets() {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // it covers no pods
		}
		t.pdbs = append(t.pdbs, &drainedPDB{b, selector, map[string]int32{}})
	}
	slices.SortFunc(t.pdbs, func(a, b *drainedPDB) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// countEviction counts the eviction of a pod in its budgets. Eviction does not ask the budgets of pods that wait or
// have ended.
func (t *simulation) countEviction(pod *corev1.Pod) {
	if !podkind.Active(pod) || pod.Status.Phase == corev1.PodPending {
		return
	}
	for _, b := range t.pdbs {
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

// notePDBs notes the budgets that would hold up the drain.
func (t *simulation) notePDBs(drained []string) {
	for _, drainedPDB := range t.pdbs {
		var all int32
		var on []string
		for _, node := range slices.Compact(slices.Sorted(slices.Values(drained))) {
			if n := drainedPDB.evicted[node]; n > 0 {
				all += n
				on = append(on, fmt.Sprintf("%d on %s", n, node))
			}
		}
		if allowed := max(drainedPDB.Status.DisruptionsAllowed, 0); all > allowed {
			t.note(fmt.Sprintf("PodDisruptionBudget %s/%s would hold up the drain: disruptions allowed now: %d, its "+
				"pods: %s",
				drainedPDB.Namespace, drainedPDB.Name, allowed, strings.Join(on, ", ")))
		}
	}
}
