// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	podapi "keelson/api/core/pod"
	"keelson/lib/words"
)

// Autoscaler explains why a HorizontalPodAutoscaler does not scale, or is at a limit.
func Autoscaler(hpa *autoscalingv2.HorizontalPodAutoscaler) *Answer {
	answer := of("horizontalpodautoscaler", hpa)
	answer.State = words.Count(hpa.Status.CurrentReplicas, "replica")
	if hpa.Status.DesiredReplicas > 0 {
		answer.State += fmt.Sprintf(", wants %d", hpa.Status.DesiredReplicas)
	}
	if len(hpa.Status.Conditions) == 0 {
		answer.because("its controller has not looked at it yet")
		answer.do("`keelson why` it again in 15 s; after that, see whether the controllers run (`keelson status`)")
		return answer
	}
	target := strings.ToLower(hpa.Spec.ScaleTargetRef.Kind) + "/" + hpa.Spec.ScaleTargetRef.Name
	for _, condition := range hpa.Status.Conditions {
		if healthy(condition) {
			continue
		}
		answer.because("%s: %s", condition.Type, answer.quote(condition.Reason, condition.Message))
		switch {
		case condition.Reason == "FailedGetScale":
			answer.do("see whether its target %s exists", target)
		case condition.Reason == "ScalingDisabled":
			answer.do("its target has no replicas: `kubectl scale %s --replicas=1` makes it scale again", target)
		case strings.Contains(condition.Message, "missing request for"):
			answer.do("give every container of %s resources.requests of that resource: a utilization is a part of them",
				target)
		case condition.Reason == "FailedGetResourceMetric":
			answer.do("see whether its pods run and have figures (`kubectl top pods -n %s`); those of a new pod come "+
				"within a minute", hpa.Namespace)
		case strings.Contains(condition.Reason, "Metric"):
			answer.do("custom and external metrics come from an adapter that you install (`kubectl get apiservices | " +
				"grep " +
				"metrics`)")
		case condition.Reason == "TooManyReplicas", condition.Reason == "TooFewReplicas":
			answer.do("raise maxReplicas (%d) or lower minReplicas if the load asks for it", hpa.Spec.MaxReplicas)
		}
	}
	if len(answer.Why) == 0 {
		answer.because("it has its metrics and scales as they say")
	}
	return answer
}

// healthy reports whether the condition keeps the autoscaler from nothing.
func healthy(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
	switch c.Type {
	case autoscalingv2.ScaledToZero: // a fact that limits nothing
		return true
	case autoscalingv2.ScalingLimited:
		return c.Status != corev1.ConditionTrue
	}
	return c.Status == corev1.ConditionTrue
}

// Budget says whether a PodDisruptionBudget allows evictions now, and which pods count against it. pods are those in
// its namespace.
func Budget(budget *policyv1.PodDisruptionBudget, pods []corev1.Pod) *Answer {
	answer := of("poddisruptionbudget", budget)
	status := &budget.Status
	answer.State = fmt.Sprintf("%s allowed now", words.Count(max(0, status.DisruptionsAllowed), "eviction"))
	if c := condition(status.Conditions, policyv1.DisruptionAllowedCondition); c != nil &&
		c.Reason == policyv1.SyncFailedReason {
		answer.because("its controller cannot count: %s", answer.quote("", c.Message))
		answer.cannot("how many pods may go, so none may")
		return answer
	}
	if status.ObservedGeneration < budget.Generation {
		answer.because("its controller has not looked at it as it is now; until then nothing may be evicted")
		answer.do("see whether the controllers run (`keelson status`)")
		return answer
	}
	sel, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		answer.because("its selector cannot be read: %v", err)
		return answer
	}
	var well, sick []string
	for i := range pods {
		if p := &pods[i]; sel.Matches(labels.Set(p.Labels)) && !podapi.Terminal(p) {
			if podapi.Ready(p) {
				well = append(well, p.Name)
			} else {
				sick = append(sick, p.Name)
			}
		}
	}
	if len(well)+len(sick) == 0 {
		answer.because("its selector %s matches no pod, so it protects none",
			metav1.FormatLabelSelector(budget.Spec.Selector))
		return answer
	}
	answer.because("%d of %s healthy, and needed: %d", status.CurrentHealthy,
		words.Count(status.ExpectedPods, "pod"), status.DesiredHealthy)
	if status.DisruptionsAllowed > 0 {
		return answer
	}
	blocked(answer, budget, sick)
	return answer
}

func blocked(answer *Answer, budget *policyv1.PodDisruptionBudget, sick []string) {
	if len(sick) > 0 {
		answer.because("not Ready, and so not counted: %s", some(sick))
		answer.do("`keelson why pod/%s -n %s` and `keelson timeline` say what it lacks; evictions go on once it is "+
			"Ready",
			sick[0], budget.Namespace)
	}
	if len(budget.Status.DisruptedPods) > 0 {
		var gone []string
		for name := range budget.Status.DisruptedPods {
			gone = append(gone, name)
		}
		slices.Sort(gone)
		answer.because("evicted a moment ago, and still counted: %s", some(gone))
	}
	if budget.Status.DesiredHealthy >= budget.Status.ExpectedPods {
		what := "minAvailable"
		if budget.Spec.MaxUnavailable != nil {
			what = "maxUnavailable"
		}
		answer.because("its %s needs all of them: it never lets one go", what)
		answer.do("have more replicas, or change its %s", what)
	}
	if p := budget.Spec.UnhealthyPodEvictionPolicy; len(sick) > 0 && (p == nil || *p == policyv1.IfHealthyBudget) {
		answer.do("spec.unhealthyPodEvictionPolicy: AlwaysAllow lets pods be evicted that are not Ready")
	}
}
