// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	budgets "k8s.io/component-helpers/apps/poddisruptionbudget"

	podkind "keelson/api/core/pod"
)

const (
	// deletionTimeout is how long an eviction may take to show as a deletion before it no longer counts.
	deletionTimeout = 2 * time.Minute
	// staleAfter is how long a pod may have the condition DisruptionTarget without being deleted.
	staleAfter = 2 * time.Minute
)

// usesScale reports whether b counts against the replicas that the owners want, not against the existing pods.
func usesScale(b *policyv1.PodDisruptionBudget) bool {
	return b.Spec.MaxUnavailable != nil || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String
}

// desired is how many of the expected pods must be healthy. Percentages are rounded up, those of maxUnavailable too.
func desired(b *policyv1.PodDisruptionBudget, expected int32) (int32, error) {
	switch {
	case b.Spec.MaxUnavailable != nil:
		missing, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, int(expected), true)
		if err != nil {
			return 0, err
		}
		return int32(max(0, int(expected)-missing)), nil // at most expected
	case b.Spec.MinAvailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, int(expected), true)
		return int32(n), err // an int32, or a share of one
	}
	return 0, nil
}

// status is budget's status, given its pods, how many are expected and how many must be healthy. recheck is when to
// check pending evictions again, 0: there are none; overdue are pods whose eviction did not happen.
func status(budget *policyv1.PodDisruptionBudget, pods []*corev1.Pod, expected, healthy int32, now time.Time) (
	st *policyv1.PodDisruptionBudgetStatus, recheck time.Duration, overdue []*corev1.Pod,
) {
	next := budget.DeepCopy()
	st = &next.Status
	st.DisruptedPods = nil
	st.CurrentHealthy = 0
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if at, evicted := budget.Status.DisruptedPods[pod.Name]; evicted {
			if left := at.Add(deletionTimeout).Sub(now); left > 0 {
				if st.DisruptedPods == nil {
					st.DisruptedPods = map[string]metav1.Time{}
				}
				st.DisruptedPods[pod.Name] = at
				if recheck == 0 || left < recheck {
					recheck = left
				}
				continue
			}
			overdue = append(overdue, pod)
		}
		if podkind.Ready(pod) {
			st.CurrentHealthy++
		}
	}
	st.ExpectedPods = expected
	st.DesiredHealthy = healthy
	st.ObservedGeneration = budget.Generation
	st.DisruptionsAllowed = max(0, st.CurrentHealthy-healthy)
	if expected <= 0 {
		st.DisruptionsAllowed = 0 // no eviction before the budget was counted the first time
	}
	budgets.UpdateDisruptionAllowedCondition(next)
	return st, recheck, overdue
}

// failedStatus is b's status after an error: nothing may be evicted.
func failedStatus(b *policyv1.PodDisruptionBudget, err error) *policyv1.PodDisruptionBudgetStatus {
	st := b.Status.DeepCopy()
	st.DisruptionsAllowed = 0
	meta.SetStatusCondition(&st.Conditions, metav1.Condition{
		Type:               policyv1.DisruptionAllowedCondition,
		Status:             metav1.ConditionFalse,
		Reason:             policyv1.SyncFailedReason,
		Message:            err.Error(),
		ObservedGeneration: st.ObservedGeneration,
	})
	return st
}

// staleTarget reports whether p has DisruptionTarget without being deleted, and how long it may still have it. A
// kubelet needs time to end a pod, and finished pods keep the condition.
func staleTarget(p *corev1.Pod, now time.Time) (left time.Duration, stale bool) {
	if p.DeletionTimestamp != nil || podkind.Terminal(p) {
		return 0, false
	}
	c := podkind.Condition(p, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason == corev1.PodReasonTerminationByKubelet {
		return 0, false
	}
	return max(0, c.LastTransitionTime.Add(staleAfter).Sub(now)), true
}
