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
	recommended []moment // replicas before limits
	up, down    []moment // executed changes, as positive numbers
	cfg         *Config
}

// moment is a number at a time.
type moment struct {
	n  int32
	at time.Time
}

// verdict is a number of replicas with the reason of a limit.
type verdict struct {
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

// stabilize limits desired by recent recommendations: scaling up to the lowest one in its window, scaling down to the highest one in its
// window. Without behavior the highest in that window is used.
func (h *history) stabilize(hpa *scalingv2.HorizontalPodAutoscaler, current, desired int32, now time.Time) verdict {
	up, down := h.cfg.windows(hpa)
	low, high := desired, desired
	for _, r := range h.recommended {
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
		return verdict{n, "ReadyForNewScale", "recommended size matches current size"}
	case desired >= current && hpa.Spec.Behavior != nil:
		return verdict{n, "ScaleUpStabilized", lowest}
	}
	return verdict{n, "ScaleDownStabilized", highest}
}

// recommend stores a recommendation and drops those older than all windows.
func (h *history) recommend(hpa *scalingv2.HorizontalPodAutoscaler, n int32, now time.Time) {
	up, down := h.cfg.windows(hpa)
	cut := now.Add(-max(up, down))
	h.recommended = append(slices.DeleteFunc(h.recommended, func(m moment) bool { return m.at.Before(cut) }), moment{n, now})
}

// changed stores a change and drops those older than all policies' periods.
func (h *history) changed(hpa *scalingv2.HorizontalPodAutoscaler, from, to int32, now time.Time) {
	b := hpa.Spec.Behavior
	if b == nil {
		h.up, h.down = nil, nil
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
	old := func(m moment) bool { return m.at.Before(cut) }
	h.up, h.down = slices.DeleteFunc(h.up, old), slices.DeleteFunc(h.down, old)
	if to > from {
		h.up = append(h.up, moment{to - from, now})
	} else {
		h.down = append(h.down, moment{from - to, now})
	}
}

// limit limits desired to [least, most], and changes to what the policies allow.
func (h *history) limit(hpa *scalingv2.HorizontalPodAutoscaler, current, desired, least, most int32, now time.Time) verdict {
	const (
		tooFast = "the desired replica count is increasing faster than the maximum scale rate"
		tooSlow = "the desired replica count is decreasing faster than the maximum scale rate"
		tooMany = "the desired replica count is more than the maximum replica count"
		tooFew  = "the desired replica count is less than the minimum replica count"
	)
	up, down := verdict{most, "TooManyReplicas", tooMany}, verdict{least, "TooFewReplicas", tooFew}
	if b := hpa.Spec.Behavior; b == nil {
		if n := max(current, current*2, 4); current < math.MaxInt32/2 && n < most {
			up = verdict{n, "ScaleUpLimit", tooFast}
		}
	} else {
		if n := max(h.reach(b.ScaleUp, current, now, 1), current); n < most {
			up = verdict{n, "ScaleUpLimit", tooFast}
		}
		if n := min(h.reach(b.ScaleDown, current, now, -1), current); n > least {
			down = verdict{n, "ScaleDownLimit", tooSlow}
		}
	}
	switch {
	case (desired > current || hpa.Spec.Behavior == nil) && desired > up.n:
		return up
	case (desired < current || hpa.Spec.Behavior == nil) && desired < down.n:
		return down
	}
	return verdict{desired, "DesiredWithinRange", "the desired count is within the acceptable range"}
}

// reach is the limit of the rules of one direction (1 up, -1 down), from the replicas at the start of each policy's period.
func (h *history) reach(rules *scalingv2.HPAScalingRules, current int32, now time.Time, direction int32) int32 {
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
		start := int64(current) - sum(h.up, since) + sum(h.down, since)
		n := start + int64(direction)*int64(p.Value)
		if p.Type == scalingv2.PercentScalingPolicy {
			f := float64(start) * (1 + float64(direction)*float64(p.Value)/100)
			if direction > 0 {
				f = math.Ceil(f) // else a small number of replicas would never grow
			}
			n = int64(f)
		}
		all = append(all, int32(max(min(n, math.MaxInt32), math.MinInt32))) //nolint:gosec // bounded
	}
	switch {
	case len(all) == 0:
		return current
	case furthest == (direction > 0):
		return slices.Max(all)
	}
	return slices.Min(all)
}

func sum(all []moment, since time.Time) (n int64) {
	for _, m := range all {
		if m.at.After(since) {
			n += int64(m.n)
		}
	}
	return n
}
