// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"math"
	"slices"
	"time"

	scalingv2 "k8s.io/api/autoscaling/v2"
)

// defaultWindow is the default stabilization window for scaling down.
const defaultWindow = 300 * time.Second

// history is the state of one autoscaler. After a restart it begins with the current replicas.
type history struct {
	recommendations                []timestampedReplicas // replicas before limits
	scaleUpEvents, scaleDownEvents []timestampedReplicas // executed changes, as positive numbers
	cfg                            *Config
}

// timestampedReplicas is a number of replicas at a time.
type timestampedReplicas struct {
	n  int32
	at time.Time
}

// limitedReplicas is a number of replicas with the reason of a limit.
type limitedReplicas struct {
	n               int32
	reason, message string
}

const (
	lowest  = "recent recommendations were lower than current one, applying the lowest recent recommendation"
	highest = "recent recommendations were higher than current one, applying the highest recent recommendation"
)

// windows are the stabilization windows for scaling up and down.
func (c *Config) windows(h *scalingv2.HorizontalPodAutoscaler) (up, down time.Duration) {
	down = c.orDefaults().DownscaleStabilization
	if b := h.Spec.Behavior; b != nil {
		if b.ScaleUp != nil && b.ScaleUp.StabilizationWindowSeconds != nil {
			up = time.Duration(*b.ScaleUp.StabilizationWindowSeconds) * time.Second
		}
		if b.ScaleDown != nil && b.ScaleDown.StabilizationWindowSeconds != nil {
			down = time.Duration(*b.ScaleDown.StabilizationWindowSeconds) * time.Second
		}
	}
	return up, down
}

// stabilize limits desired by recent recommendations: scaling up to the lowest one in its window, scaling down to the
// highest one in its window. Without behavior the highest in that window is used.
func (h *history) stabilize(
	hpa *scalingv2.HorizontalPodAutoscaler, current, desired int32, now time.Time,
) limitedReplicas {
	up, down := h.cfg.windows(hpa)
	low := desired
	high := desired
	for _, r := range h.recommendations {
		if r.at.After(now.Add(-up)) {
			low = min(low, r.n)
		}
		if r.at.After(now.Add(-down)) {
			high = max(high, r.n)
		}
	}
	n := high
	if hpa.Spec.Behavior != nil {
		n = min(max(current, low), high)
	}
	switch {
	case n == desired:
		return limitedReplicas{n, "ReadyForNewScale", "recommended size matches current size"}
	case desired >= current && hpa.Spec.Behavior != nil:
		return limitedReplicas{n, "ScaleUpStabilized", lowest}
	}
	return limitedReplicas{n, "ScaleDownStabilized", highest}
}

// recordRecommendation stores a recommendation and drops those older than all windows.
func (h *history) recordRecommendation(hpa *scalingv2.HorizontalPodAutoscaler, n int32, now time.Time) {
	up, down := h.cfg.windows(hpa)
	cut := now.Add(-max(up, down))
	h.recommendations = append(slices.DeleteFunc(h.recommendations, func(m timestampedReplicas) bool {
		return m.at.Before(cut)
	}), timestampedReplicas{n, now})
}

// recordScaling stores a change and drops those older than all policies' periods.
func (h *history) recordScaling(hpa *scalingv2.HorizontalPodAutoscaler, from, to int32, now time.Time) {
	b := hpa.Spec.Behavior
	if b == nil {
		h.scaleUpEvents = nil
		h.scaleDownEvents = nil
		return
	}
	var longest int32
	for _, r := range []*scalingv2.HPAScalingRules{b.ScaleUp, b.ScaleDown} {
		if r != nil {
			for _, p := range r.Policies {
				longest = max(longest, p.PeriodSeconds)
			}
		}
	}
	cut := now.Add(-time.Duration(longest) * time.Second)
	old := func(m timestampedReplicas) bool { return m.at.Before(cut) }
	h.scaleUpEvents = slices.DeleteFunc(h.scaleUpEvents, old)
	h.scaleDownEvents = slices.DeleteFunc(h.scaleDownEvents, old)
	if to > from {
		h.scaleUpEvents = append(h.scaleUpEvents, timestampedReplicas{to - from, now})
	} else {
		h.scaleDownEvents = append(h.scaleDownEvents, timestampedReplicas{from - to, now})
	}
}

// limit limits desired to [minReplicas, maxReplicas], and changes to what the policies allow.
func (h *history) limit(
	hpa *scalingv2.HorizontalPodAutoscaler, current, desired, minReplicas, maxReplicas int32, now time.Time,
) limitedReplicas {
	const (
		tooFast = "the desired replica count is increasing faster than the maximum scale rate"
		tooSlow = "the desired replica count is decreasing faster than the maximum scale rate"
		tooMany = "the desired replica count is more than the maximum replica count"
		tooFew  = "the desired replica count is less than the minimum replica count"
	)
	up := limitedReplicas{maxReplicas, "TooManyReplicas", tooMany}
	down := limitedReplicas{minReplicas, "TooFewReplicas", tooFew}
	if b := hpa.Spec.Behavior; b == nil {
		if n := max(current, current*2, 4); current < math.MaxInt32/2 && n < maxReplicas {
			up = limitedReplicas{n, "ScaleUpLimit", tooFast}
		}
	} else {
		if n := max(h.policyLimit(b.ScaleUp, current, now, 1), current); n < maxReplicas {
			up = limitedReplicas{n, "ScaleUpLimit", tooFast}
		}
		if n := min(h.policyLimit(b.ScaleDown, current, now, -1), current); n > minReplicas {
			down = limitedReplicas{n, "ScaleDownLimit", tooSlow}
		}
	}
	switch {
	case (desired > current || hpa.Spec.Behavior == nil) && desired > up.n:
		return up
	case (desired < current || hpa.Spec.Behavior == nil) && desired < down.n:
		return down
	}
	return limitedReplicas{desired, "DesiredWithinRange", "the desired count is within the acceptable range"}
}

// policyLimit is the limit of the rules of one direction (1 up, -1 down), from the replicas at the start of each
// policy's period.
func (h *history) policyLimit(rules *scalingv2.HPAScalingRules, current int32, now time.Time, direction int32) int32 {
	if rules == nil {
		if direction > 0 {
			return math.MaxInt32
		}
		return 0
	}
	furthest := true
	if s := rules.SelectPolicy; s != nil {
		if *s == scalingv2.DisabledPolicySelect {
			return current
		}
		furthest = *s != scalingv2.MinChangePolicySelect
	}
	var all []int32
	for _, p := range rules.Policies {
		since := now.Add(-time.Duration(p.PeriodSeconds) * time.Second)
		start := int64(current) - sum(h.scaleUpEvents, since) + sum(h.scaleDownEvents, since)
		n := start + int64(direction)*int64(p.Value)
		if p.Type == scalingv2.PercentScalingPolicy {
			f := float64(start) * (1 + float64(direction)*float64(p.Value)/100)
			if direction > 0 {
				f = math.Ceil(f) // else a small number of replicas would never grow
			}
			n = int64(f)
		}
		all = append(all, int32(max(min(n, math.MaxInt32), math.MinInt32))) // bounded
	}
	switch {
	case len(all) == 0:
		return current
	case furthest == (direction > 0):
		return slices.Max(all)
	}
	return slices.Min(all)
}

func sum(all []timestampedReplicas, since time.Time) (n int64) {
	for _, m := range all {
		if m.at.After(since) {
			n += int64(m.n)
		}
	}
	return n
}
