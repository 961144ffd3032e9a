// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// snapshot is the input of a decision. Nothing in it is modified except history, by decide.
type snapshot struct {
	hpa   *scalingv2.HorizontalPodAutoscaler
	scale scale
	// pods are the target's pods; selectorErr is why they are unknown.
	pods        []*corev1.Pod
	selectorErr error
	// selectedBy are all autoscalers that select some of the pods, including this one, as namespace/name.
	selectedBy []string
	// fetched are the metrics of the spec in order; nil if they are not needed.
	fetched []fetched
	history *history
	now     time.Time
	cfg     *Config
}

// scale is the content of the target's scale subresource.
type scale struct {
	spec, status int32
	selector     string
}

// fetched is one metric from its API.
type fetched struct {
	pods  map[string]podMetric // per pod
	value int64                // other metrics, in thousandths
	err   error
	took  time.Duration
}

// plan is the decision about an autoscaler.
type plan struct {
	// replicas is the wanted number; rescale: the target must be scaled.
	replicas int32
	rescale  bool
	reason   string
	status   *scalingv2.HorizontalPodAutoscalerStatus
	events   []event
	// recommended is the result of the metrics; -1: none.
	recommended int32
	// errorLabel is the error label of failed metrics; computations are the single ones.
	errorLabel   string
	computations []metricComputation
}

type event struct{ kind, reason, message string }

func (p *plan) warn(reason, message string) {
	p.events = append(p.events, event{corev1.EventTypeWarning, reason, message})
}

func minReplicasOf(h *scalingv2.HorizontalPodAutoscaler) int32 {
	if h.Spec.MinReplicas != nil {
		return *h.Spec.MinReplicas
	}
	return 1
}

// mayScaleFromZero reports whether an autoscaler may scale up from zero: only if it scaled to zero itself.
func mayScaleFromZero(h *scalingv2.HorizontalPodAutoscaler) bool {
	c := condition(&h.Status, scalingv2.ScaledToZero)
	return c != nil && c.Status == corev1.ConditionTrue && (minReplicasOf(h) != 0 || hasNonPodMetric(h))
}

// hasNonPodMetric reports whether one of the metrics has a value without pods.
func hasNonPodMetric(h *scalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(h.Spec.Metrics, func(m scalingv2.MetricSpec) bool {
		return m.Type == scalingv2.ObjectMetricSourceType || m.Type == scalingv2.ExternalMetricSourceType
	})
}

// needsMetrics reports whether the metrics are needed; else the replicas alone decide.
func needsMetrics(h *scalingv2.HorizontalPodAutoscaler, current int32) bool {
	if current == 0 {
		return mayScaleFromZero(h)
	}
	return current <= h.Spec.MaxReplicas && current >= minReplicasOf(h)
}

// decide makes the decision. It returns no error: problems are in conditions and events.
func decide(snap *snapshot) plan {
	hpa := snap.hpa
	current := snap.scale.spec
	steps := plan{
		replicas:    current,
		status:      hpa.Status.DeepCopy(),
		recommended: -1,
		errorLabel:  none,
	}
	steps.status.CurrentReplicas = current
	steps.set(snap, scalingv2.AbleToScale, true, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	switch lowest := minReplicasOf(hpa); {
	case needsMetrics(hpa, current):
		if !steps.fromMetrics(snap) {
			return steps
		}
	case current == 0:
		steps.status.CurrentMetrics = nil
		steps.set(snap, scalingv2.ScalingActive, false, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
	case current > hpa.Spec.MaxReplicas:
		steps.replicas = hpa.Spec.MaxReplicas
		steps.reason = "Current number of replicas above Spec.MaxReplicas"
		steps.status.CurrentMetrics = nil
	default:
		steps.replicas = lowest
		steps.reason = "Current number of replicas below Spec.MinReplicas"
		steps.status.CurrentMetrics = nil
	}
	steps.rescale = steps.replicas != current
	steps.status.DesiredReplicas = steps.replicas
	return steps
}

// fromMetrics decides from the metrics; false: no decision is possible.
func (p *plan) fromMetrics(snap *snapshot) bool {
	hpa := snap.hpa
	current := snap.scale.spec
	n, name, err := p.compute(snap)
	if err != nil {
		p.warn("FailedComputeMetricsReplicas", err.Error())
		if p.errorLabel == none {
			p.errorLabel = internal
		}
		if n < 0 {
			return false
		}
	}
	p.recommended = n
	switch {
	case n > current:
		p.reason = name + " above target"
	case n < current:
		p.reason = "All metrics below target"
	}
	v := snap.history.stabilize(hpa, current, n, snap.now)
	p.set(snap, scalingv2.AbleToScale, true, v.reason, v.message)
	w := snap.history.limit(hpa, current, v.n, minReplicasOf(hpa), hpa.Spec.MaxReplicas, snap.now)
	p.set(snap, scalingv2.ScalingLimited, w.n != v.n, w.reason, w.message)
	p.replicas = w.n
	if current == 0 {
		p.replicas = max(p.replicas, minReplicasOf(hpa))
	}
	return true
}

// compute is the highest result of all metrics, and its name. With an error and n >= 0 some metrics failed but the
// others suffice.
func (p *plan) compute(snap *snapshot) (n int32, name string, err error) {
	if err := p.checkPods(snap); err != nil {
		p.errorLabel = inSpec
		return -1, "", err
	}
	statuses := make([]scalingv2.MetricStatus, len(snap.hpa.Spec.Metrics))
	bad := 0
	var first proposal
	for i := range snap.hpa.Spec.Metrics {
		m := &snap.hpa.Spec.Metrics[i]
		want := snap.metric(m, &snap.fetched[i], &statuses[i])
		p.computations = append(p.computations, metricComputation{
			m.Type, want.direction(snap.scale.spec), want.errorLabel(), snap.fetched[i].took,
		})
		if want.err != nil {
			if bad++; bad == 1 {
				first = want
				p.errorLabel = want.errorLabel()
			}
			p.warn(want.reason, want.cause.Error())
			continue
		}
		if n == 0 || want.n > n {
			n = want.n
			name = want.name
		}
	}
	switch {
	case len(snap.hpa.Spec.Metrics) == 0:
		err = errors.New("no metrics are specified")
		p.errorLabel = inSpec
		first = proposal{reason: "InvalidMetricSourceType", cause: err}
	case bad > 0:
		err = fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", bad, len(snap.hpa.Spec.Metrics),
			first.err)
	}
	if bad >= len(snap.hpa.Spec.Metrics) || bad > 0 && n < snap.scale.spec {
		p.set(snap, scalingv2.ScalingActive, false, first.reason, "the HPA was unable to compute the replica count: "+
			first.cause.Error())
		return -1, "", err
	}
	p.status.CurrentMetrics = statuses // else the old ones stay
	p.set(snap, scalingv2.ScalingActive, true, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from "+name)
	return n, name, err
}

// checkPods is why the target's pods cannot be used.
func (p *plan) checkPods(snap *snapshot) error {
	switch {
	case snap.scale.selector == "":
		p.warn("SelectorRequired", "selector is required")
		p.set(snap, scalingv2.ScalingActive, false, "InvalidSelector", "the HPA target's scale is missing a selector")
		return errors.New("selector is required")
	case snap.selectorErr != nil:
		text := "couldn't convert selector into a corresponding internal selector object: " + snap.selectorErr.Error()
		p.warn("InvalidSelector", text)
		p.set(snap, scalingv2.ScalingActive, false, "InvalidSelector", text)
		return errors.New(text)
	case len(snap.selectedBy) > 1:
		text := fmt.Sprintf("pods by selector %s are controlled by multiple HPAs: [%s]", snap.scale.selector,
			strings.Join(snap.selectedBy, " "))
		p.warn("AmbiguousSelector", text)
		p.set(snap, scalingv2.ScalingActive, false, "AmbiguousSelector", text)
		return errors.New(text)
	}
	return nil
}

// set sets a condition.
func (p *plan) set(s *snapshot, kind scalingv2.HorizontalPodAutoscalerConditionType, is bool, reason, message string) {
	setCondition(s.hpa, p.status, kind, is, reason, message, s.now)
}

// rescaled records that the target was scaled.
func (p *plan) rescaled(s *snapshot) {
	at := metav1.NewTime(s.now)
	p.status.LastScaleTime = &at
	p.set(s, scalingv2.AbleToScale, true, "SucceededRescale",
		fmt.Sprintf("the HPA controller was able to update the target scale to %d", p.replicas))
	if s.scale.spec > 0 && p.replicas == 0 && minReplicasOf(s.hpa) == 0 && hasNonPodMetric(s.hpa) {
		p.set(s, scalingv2.ScaledToZero, true, "ScaledToZero", "the HPA controller scaled the workload to zero")
	} else {
		p.set(s, scalingv2.ScaledToZero, false, "NotScaledToZero",
			"the HPA controller did not scale the workload to zero")
	}
	p.events = append(p.events, event{
		corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", p.replicas, p.reason),
	})
}

// failed records that the target could not be scaled.
func (p *plan) failed(s *snapshot, err error) {
	p.status.DesiredReplicas = s.hpa.Status.DesiredReplicas
	p.status.CurrentMetrics = s.hpa.Status.CurrentMetrics
	p.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", p.replicas, p.reason, err))
	p.set(s, scalingv2.AbleToScale, false, "FailedUpdateScale",
		fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
}

func condition(
	st *scalingv2.HorizontalPodAutoscalerStatus, kind scalingv2.HorizontalPodAutoscalerConditionType,
) *scalingv2.HorizontalPodAutoscalerCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == kind {
			return &st.Conditions[i]
		}
	}
	return nil
}

// setCondition sets a condition of st, the next status of hpa.
func setCondition(
	hpa *scalingv2.HorizontalPodAutoscaler, st *scalingv2.HorizontalPodAutoscalerStatus,
	kind scalingv2.HorizontalPodAutoscalerConditionType, is bool, reason, message string, now time.Time,
) {
	c := condition(st, kind)
	if c == nil {
		st.Conditions = append(st.Conditions, scalingv2.HorizontalPodAutoscalerCondition{Type: kind})
		c = &st.Conditions[len(st.Conditions)-1]
	}
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	c.Status = status
	c.ObservedGeneration = new(hpa.Generation)
	c.Reason = reason
	c.Message = message
}

func milliQuantity(n int64) *resource.Quantity {
	return resource.NewMilliQuantity(n, resource.DecimalSI)
}

// usage is the use of a resource, from thousandths. Memory is in kibibytes, as metrics-server and kubectl write it.
func usage(name corev1.ResourceName, n int64) *resource.Quantity {
	const kibibyte = 1024 * 1000
	if name == corev1.ResourceMemory && n >= kibibyte {
		return resource.NewQuantity(n/kibibyte*1024, resource.BinarySI)
	}
	return milliQuantity(n)
}
