// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"fmt"
	"math"
	"time"

	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	resourcehelpers "k8s.io/component-helpers/resource"

	"keelson/api/core/pod"
)

// podMetric is the value of a metric for one pod, in thousandths, over a window that ended at at.
type podMetric struct {
	value  int64
	at     time.Time
	window time.Duration
}

// tolerance is the allowed deviation of a usage from its target.
type tolerance struct{ down, up float64 }

func (c *Config) toleranceOf(h *scalingv2.HorizontalPodAutoscaler) tolerance {
	usual := c.orDefaults().Tolerance
	t := tolerance{usual, usual}
	if b := h.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return t
}

func (t tolerance) isWithin(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// podGroups are pods grouped by the use of their metrics.
type podGroups struct {
	ready            int
	unready, missing []string
	metrics          map[string]podMetric // of the pods that count
}

// groupPods groups the pods. Terminating ones are left out; starting ones count as unready, because their CPU usage is
// not meaningful yet.
func (c *Config) groupPods(
	pods []*corev1.Pod, metrics map[string]podMetric, resource corev1.ResourceName, now time.Time,
) podGroups {
	g := podGroups{metrics: map[string]podMetric{}}
	cfg := c.orDefaults()
	for _, p := range pods {
		m, found := metrics[p.Name]
		switch {
		case p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed:
			continue
		case p.Status.Phase == corev1.PodPending:
			g.unready = append(g.unready, p.Name)
		case !found:
			g.missing = append(g.missing, p.Name)
		case resource == corev1.ResourceCPU && !cfg.usageIsMeaningful(p, m, now):
			g.unready = append(g.unready, p.Name)
		default:
			g.ready++
			g.metrics[p.Name] = m
		}
	}
	return g
}

// usageIsMeaningful reports whether a pod's CPU usage reflects its load.
func (c *Config) usageIsMeaningful(p *corev1.Pod, m podMetric, now time.Time) bool {
	cond := pod.Condition(p, corev1.PodReady)
	if cond == nil || p.Status.StartTime == nil {
		return false
	}
	since := cond.LastTransitionTime.Time
	// it may still initialize: it must be ready, and for a whole window
	if p.Status.StartTime.Add(c.CPUInitialization).After(now) {
		return cond.Status != corev1.ConditionFalse && !m.at.Before(since.Add(m.window))
	}
	// unready from the start
	return cond.Status != corev1.ConditionFalse || !p.Status.StartTime.Add(c.InitialReadinessDelay).After(since)
}

// ratioOf is the ratio of the usage to its target over all pods of metrics.
type ratioOf func(metrics map[string]podMetric) (float64, error)

// replicasFor converts a ratio to replicas. missing is the assumed usage of a pod without a metric when scaling down.
func (g *podGroups) replicasFor(current int32, t tolerance, ratio ratioOf, missing func(
	pod string,
) int64,
) (int32, error) {
	first, err := ratio(g.metrics)
	if err != nil {
		return 0, err
	}
	unready := len(g.unready) > 0 && first > 1
	if !unready && len(g.missing) == 0 {
		if t.isWithin(first) {
			return current, nil
		}
		return ceil(first * float64(g.ready)), nil
	}
	// Assume that missing values reduce the change.
	for _, name := range g.missing {
		switch {
		case first < 1:
			g.metrics[name] = podMetric{value: missing(name)}
		case first > 1:
			g.metrics[name] = podMetric{}
		}
	}
	if unready {
		for _, name := range g.unready {
			g.metrics[name] = podMetric{}
		}
	}
	second, err := ratio(g.metrics)
	if err != nil {
		return 0, err
	}
	if t.isWithin(second) || first < 1 && second > 1 || first > 1 && second < 1 {
		return current, nil
	}
	n := ceil(second * float64(len(g.metrics)))
	if second < 1 && n > current || second > 1 && n < current {
		return current, nil
	}
	return n, nil
}

// ceil rounds up, limited to the range of a count.
func ceil(f float64) int32 {
	switch f = math.Ceil(f); {
	case math.IsNaN(f) || f < 0:
		return 0
	case f >= math.MaxInt32:
		return math.MaxInt32
	}
	return int32(f)
}

var (
	errNoPods    = errors.New("no pods returned by selector while calculating replica count")
	errNoMetrics = errors.New("did not receive metrics for targeted pods (pods might be unready)")
	errUnmatched = errors.New("no metrics returned matched known pods")
)

// utilization computes the replicas for target percent of the pods' requests. It also returns the current utilization
// and average usage.
func (s *snapshot) utilization(
	metrics map[string]podMetric, target int32, resource corev1.ResourceName, container string,
) (n, percent int32, average int64, err error) {
	if len(s.pods) == 0 {
		return 0, 0, 0, errNoPods
	}
	podGroups := s.cfg.groupPods(s.pods, metrics, resource, s.now)
	if len(podGroups.metrics) == 0 {
		return 0, 0, 0, errNoMetrics
	}
	requests := map[string]int64{}
	for _, p := range s.pods {
		if requests[p.Name], err = requestOf(p, container, resource); err != nil {
			return 0, 0, 0, err
		}
	}
	of := func(metrics map[string]podMetric) (int32, int64, error) {
		var used, requested int64
		for name, m := range metrics {
			used = add(used, m.value)
			requested = add(requested, requests[name])
		}
		if requested == 0 {
			return 0, 0, errUnmatched
		}
		percent := float64(used) * 100 / float64(requested)
		return int32(min(math.Floor(percent), math.MaxInt32)), used / int64(len(metrics)), nil
	}
	if percent, average, err = of(podGroups.metrics); err != nil {
		return 0, 0, 0, err
	}
	ratio := func(metrics map[string]podMetric) (float64, error) {
		now, _, err := of(metrics)
		return float64(now) / float64(target), err
	}
	n, err = podGroups.replicasFor(s.scale.spec, s.cfg.toleranceOf(s.hpa), ratio, func(pod string) int64 {
		return requests[pod] * int64(max(100, target)) / 100
	})
	return n, percent, average, err
}

// averageValue computes the replicas for target per pod, in thousandths.
func (s *snapshot) averageValue(
	metrics map[string]podMetric, target int64, resource corev1.ResourceName,
) (n int32, average int64, err error) {
	if len(s.pods) == 0 {
		return 0, 0, errNoPods
	}
	podGroups := s.cfg.groupPods(s.pods, metrics, resource, s.now)
	if len(podGroups.metrics) == 0 {
		return 0, 0, errNoMetrics
	}
	of := func(metrics map[string]podMetric) int64 {
		var used int64
		for _, m := range metrics {
			used = add(used, m.value)
		}
		return used / int64(len(metrics))
	}
	average = of(podGroups.metrics)
	ratio := func(metrics map[string]podMetric) (float64, error) {
		return float64(of(metrics)) / float64(target), nil
	}
	n, err = podGroups.replicasFor(s.scale.spec, s.cfg.toleranceOf(s.hpa), ratio, func(string) int64 { return target })
	return n, average, err
}

// value computes the replicas for a target of a non-pod metric, in thousandths.
func (s *snapshot) value(usage, target int64) (int32, error) {
	ratio := float64(usage) / float64(target)
	if s.scale.spec == 0 {
		return ceil(ratio), nil
	}
	if s.cfg.toleranceOf(s.hpa).isWithin(ratio) {
		return s.scale.spec, nil
	}
	if len(s.pods) == 0 {
		return 0, fmt.Errorf("unable to calculate ready pods: %w", errNoPods)
	}
	ready := 0
	for _, p := range s.pods {
		if p.Status.Phase == corev1.PodRunning && pod.Ready(p) {
			ready++
		}
	}
	return ceil(ratio * float64(ready)), nil
}

// perPod computes the replicas for a target per pod of a non-pod metric, in thousandths. It also returns the current
// average.
func (s *snapshot) perPod(usage, target int64) (n int32, average int64) {
	n = s.scale.status
	if ratio := float64(usage) / (float64(target) * float64(n)); !s.cfg.toleranceOf(s.hpa).isWithin(ratio) {
		n = ceil(float64(usage) / float64(target))
	}
	if s.scale.status == 0 {
		return n, usage
	}
	return n, int64(math.Ceil(float64(usage) / float64(s.scale.status)))
}

// requestOf is a pod's or container's request of a resource, in thousandths.
func requestOf(p *corev1.Pod, container string, resource corev1.ResourceName) (int64, error) {
	if container == "" && resourcehelpers.IsPodLevelRequestsSet(p) {
		q, ok := resourcehelpers.PodRequests(p, resourcehelpers.PodResourcesOptions{})[resource]
		if !ok {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", resource, p.Name)
		}
		return q.MilliValue(), nil
	}
	var sum int64
	found := false
	each := func(c *corev1.Container) error {
		if container != "" && container != c.Name {
			return nil
		}
		q, ok := c.Resources.Requests[resource]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", resource, c.Name, p.Name)
		}
		found = true
		sum = sum + q.MilliValue()
		return nil
	}
	for i := range p.Spec.Containers {
		if err := each(&p.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			if err := each(c); err != nil {
				return 0, err
			}
		}
	}
	if container != "" && !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
	}
	return sum, nil
}

// add adds with saturation.
func add(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
