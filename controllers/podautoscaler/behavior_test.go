// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"fmt"
	"testing"
	"time"

	scalingv2 "k8s.io/api/autoscaling/v2"
)

func rules(
	window int32, sel scalingv2.ScalingPolicySelect, policies ...scalingv2.HPAScalingPolicy,
) *scalingv2.HPAScalingRules {
	return &scalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &sel, Policies: policies}
}

func policy(kind scalingv2.HPAScalingPolicyType, value, seconds int32) scalingv2.HPAScalingPolicy {
	return scalingv2.HPAScalingPolicy{Type: kind, Value: value, PeriodSeconds: seconds}
}

func TestLimit(t *testing.T) {
	four := policy(scalingv2.PodsScalingPolicy, 4, 60)
	percent := policy(scalingv2.PercentScalingPolicy, 50, 60)
	ago := func(n int32, d time.Duration) []timestampedReplicas { return []timestampedReplicas{{n, start.Add(-d)}} }
	type by = *scalingv2.HPAScalingRules
	for _, c := range []struct {
		what             string
		up, down         by
		past             history
		current, desired int32
		want             string
	}{
		{"plain: doubled", nil, nil, history{}, 10, 30, "20 ScaleUpLimit"},
		{"plain: four at least", nil, nil, history{}, 1, 30, "4 ScaleUpLimit"},
		{"plain: the most", nil, nil, history{}, 60, 200, "100 TooManyReplicas"},
		{"plain: the least", nil, nil, history{}, 60, 0, "2 TooFewReplicas"},
		{"plain: as wanted", nil, nil, history{}, 60, 30, "30 DesiredWithinRange"},
		{
			"up: the furthest", rules(0, "Max", four, percent), rules(0, "Max", four),
			history{},
			20, 90,
			"30 ScaleUpLimit",
		},
		{
			"up: the nearest", rules(0, "Min", four, percent), rules(0, "Max", four),
			history{},
			20, 90,
			"24 ScaleUpLimit",
		},
		{"up: not at all", rules(0, "Disabled", four), rules(0, "Max", four), history{}, 20, 90, "20 ScaleUpLimit"},
		{
			"up: some of it is used up", rules(0, "Max", four), rules(0, "Max", four),
			history{scaleUpEvents: ago(3, 30*time.Second)},
			20, 90, "21 ScaleUpLimit",
		},
		{
			"up: and free again", rules(0, "Max", four), rules(0, "Max", four),
			history{scaleUpEvents: ago(3, 61*time.Second)},
			20, 90, "24 ScaleUpLimit",
		},
		{
			"up: what went down may come back", rules(0, "Max", four), rules(0, "Max", four),
			history{scaleDownEvents: ago(3, 30*time.Second)},
			20, 90, "27 ScaleUpLimit",
		},
		{
			"up: a part is rounded up", rules(0, "Max", policy(scalingv2.PercentScalingPolicy, 1, 60)),
			rules(0, "Max", four),
			history{},
			20, 90, "21 ScaleUpLimit",
		},
		{
			"up: the most", rules(0, "Max", policy(scalingv2.PodsScalingPolicy, 500, 60)), rules(0, "Max", four),
			history{},
			20, 900, "100 TooManyReplicas",
		},
		{
			"down: the furthest", rules(0, "Max", four), rules(0, "Max", four, percent),
			history{},
			20, 2,
			"10 ScaleDownLimit",
		},
		{
			"down: the nearest", rules(0, "Max", four), rules(0, "Min", four, percent),
			history{},
			20, 2,
			"16 ScaleDownLimit",
		},
		{"down: not at all", rules(0, "Max", four), rules(0, "Disabled", four), history{}, 20, 2, "20 ScaleDownLimit"},
		{
			"down: used up", rules(0, "Max", four), rules(0, "Max", four),
			history{scaleDownEvents: ago(4, 30*time.Second)},
			20, 2, "20 ScaleDownLimit",
		},
		{
			"down: the least", rules(0, "Max", four), rules(0, "Max", policy(scalingv2.PercentScalingPolicy, 100, 60)),
			history{},
			20, 0, "2 TooFewReplicas",
		},
		{
			"no change", rules(0, "Disabled", four), rules(0, "Disabled", four),
			history{},
			20, 20,
			"20 DesiredWithinRange",
		},
	} {
		h := &scalingv2.HorizontalPodAutoscaler{}
		if c.up != nil {
			h.Spec.Behavior = &scalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: c.up, ScaleDown: c.down}
		}
		v := c.past.limit(h, c.current, c.desired, 2, 100, start)
		if got := fmt.Sprint(v.n, " ", v.reason); got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}

func TestStabilize(t *testing.T) {
	past := func() *history {
		return &history{recommendations: []timestampedReplicas{
			{9, start.Add(-400 * time.Second)},
			{7, start.Add(-200 * time.Second)},
			{3, start.Add(-30 * time.Second)},
		}}
	}
	all := policy(scalingv2.PercentScalingPolicy, 100, 15)
	behavior := func(up, down int32) *scalingv2.HorizontalPodAutoscalerBehavior {
		return &scalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp:   rules(up, "Max", all),
			ScaleDown: rules(down, "Max", all),
		}
	}
	for _, c := range []struct {
		what             string
		b                *scalingv2.HorizontalPodAutoscalerBehavior
		current, desired int32
		want             string
	}{
		{"down, five minutes by default", nil, 7, 2, "7 ScaleDownStabilized"},
		{"up, at once by default", nil, 7, 8, "8 ReadyForNewScale"},
		{"down at once", behavior(0, 0), 7, 2, "2 ReadyForNewScale"},
		{"down within a minute's", behavior(0, 60), 7, 2, "3 ScaleDownStabilized"},
		{"up within a minute's", behavior(60, 0), 2, 8, "3 ScaleUpStabilized"},
		{"up, but never below what is", behavior(60, 0), 5, 8, "5 ScaleUpStabilized"},
	} {
		h := &scalingv2.HorizontalPodAutoscaler{}
		h.Spec.Behavior = c.b
		v := past().stabilize(h, c.current, c.desired, start)
		if got := fmt.Sprint(v.n, " ", v.reason); got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}

// TestHistoryStaysShort: entries older than every window and policy are dropped.
func TestHistoryStaysShort(t *testing.T) {
	hpa := &scalingv2.HorizontalPodAutoscaler{}
	four := policy(scalingv2.PodsScalingPolicy, 4, 60)
	hpa.Spec.Behavior = &scalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   rules(0, "Max", four),
		ScaleDown: rules(300, "Max", four),
	}
	var past history
	for i := range 10_000 {
		at := start.Add(time.Duration(i) * period)
		past.recordRecommendation(hpa, int32(i), at)
		past.recordScaling(hpa, 1, 2, at)
		past.recordScaling(hpa, 2, 1, at)
	}
	if len(past.recommendations) > 22 || len(past.scaleUpEvents) > 6 || len(past.scaleDownEvents) > 6 {
		t.Errorf("remembers %d, %d, %d", len(past.recommendations), len(past.scaleUpEvents), len(past.scaleDownEvents))
	}
}
