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
)

// Autoscaler explains why a HorizontalPodAutoscaler does not scale, or is at a limit.
func Autoscaler(h *autoscalingv2.HorizontalPodAutoscaler) *Answer {
	a := of("horizontalpodautoscaler", h)
	a.State = plural(int(h.Status.CurrentReplicas), "replica")
	if h.Status.DesiredReplicas > 0 {
		a.State += fmt.Sprintf(", wants %d", h.Status.DesiredReplicas)
	}
	if len(h.Status.Conditions) == 0 {
		a.because("its controller has not looked at it yet")
		a.do("`keelson why` it again in 15 s; after that, see whether the controllers run (`keelson status`)")
		return a
	}
	target := strings.ToLower(h.Spec.ScaleTargetRef.Kind) + "/" + h.Spec.ScaleTargetRef.Name
	for _, c := range h.Status.Conditions {
		if healthy(c) {
			continue
		}
		a.because("%s: %s", c.Type, said(c.Reason, c.Message))
		switch {
		case c.Reason == "FailedGetScale":
			a.do("see whether its target %s exists", target)
		case c.Reason == "ScalingDisabled":
			a.do("its target has no replicas: `kubectl scale %s --replicas=1` makes it scale again", target)
		case strings.Contains(c.Message, "missing request for"):
			a.do("give every container of %s resources.requests of that resource: a utilization is a part of them",
				target)
		case c.Reason == "FailedGetResourceMetric":
			a.do("see whether its pods run and have figures (`kubectl top pods -n %s`); those of a new pod come "+
				"within a minute", h.Namespace)
		case strings.Contains(c.Reason, "Metric"):
			a.do("custom and external metrics come from an adapter that you install (`kubectl get apiservices | grep " +
				"metrics`)")
		case c.Reason == "TooManyReplicas", c.Reason == "TooFewReplicas":
			a.do("raise maxReplicas (%d) or lower minReplicas if the load asks for it", h.Spec.MaxReplicas)
		}
	}
	if len(a.Why) == 0 {
		a.because("it has its metrics and scales as they say")
	}
	return a
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
func Budget(b *policyv1.PodDisruptionBudget, pods []corev1.Pod) *Answer {
	a := of("poddisruptionbudget", b)
	s := &b.Status
	a.State = fmt.Sprintf("%s allowed now", plural(int(max(0, s.DisruptionsAllowed)), "eviction"))
	if c := condition(s.Conditions, policyv1.DisruptionAllowedCondition); c != nil &&
		c.Reason == policyv1.SyncFailedReason {
		a.because("its controller cannot count: %s", c.Message)
		a.cannot("how many pods may go, so none may")
		return a
	}
	if s.ObservedGeneration < b.Generation {
		a.because("its controller has not looked at it as it is now; until then nothing may be evicted")
		a.do("see whether the controllers run (`keelson status`)")
		return a
	}
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		a.because("its selector cannot be read: %v", err)
		return a
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
		a.because("its selector %s matches no pod, so it protects none", metav1.FormatLabelSelector(b.Spec.Selector))
		return a
	}
	a.because("%d of %d pods are healthy, and %d have to be", s.CurrentHealthy, s.ExpectedPods, s.DesiredHealthy)
	if s.DisruptionsAllowed > 0 {
		return a
	}
	blocked(a, b, sick)
	return a
}

func blocked(a *Answer, b *policyv1.PodDisruptionBudget, sick []string) {
	if len(sick) > 0 {
		a.because("not Ready, and so not counted: %s", some(sick))
		a.do("`keelson why pod/%s -n %s` and `keelson timeline` say what it lacks; evictions go on once it is Ready",
			sick[0], b.Namespace)
	}
	if len(b.Status.DisruptedPods) > 0 {
		var gone []string
		for name := range b.Status.DisruptedPods {
			gone = append(gone, name)
		}
		slices.Sort(gone)
		a.because("evicted a moment ago, and still counted: %s", some(gone))
	}
	if b.Status.DesiredHealthy >= b.Status.ExpectedPods {
		what := "minAvailable"
		if b.Spec.MaxUnavailable != nil {
			what = "maxUnavailable"
		}
		a.because("its %s needs all of them: it never lets one go", what)
		a.do("have more replicas, or change its %s", what)
	}
	if p := b.Spec.UnhealthyPodEvictionPolicy; len(sick) > 0 && (p == nil || *p == policyv1.IfHealthyBudget) {
		a.do("spec.unhealthyPodEvictionPolicy: AlwaysAllow lets pods be evicted that are not Ready")
	}
}
