// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"fmt"
	"testing"
	"time"

	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// aPod requests 1000m and 1Gi, and has been running and ready for an hour.
func aPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	began := metav1.NewTime(start.Add(-time.Hour))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
			},
		}}},
		Status: corev1.PodStatus{
			Phase:     corev1.PodRunning,
			StartTime: &began,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: began},
			},
		},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// started says how long ago a pod was started, and when its Ready condition last changed to ready.
func started(ago, changed time.Duration, ready bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		at := metav1.NewTime(start.Add(-ago))
		p.Status.StartTime = &at
		c := &p.Status.Conditions[0]
		c.LastTransitionTime = metav1.NewTime(start.Add(-changed))
		if !ready {
			c.Status = corev1.ConditionFalse
		}
	}
}

func pending(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }
func failed(p *corev1.Pod)  { p.Status.Phase = corev1.PodFailed }
func going(p *corev1.Pod)   { p.DeletionTimestamp = &metav1.Time{Time: start} }

// uses are the metrics of pods p0, p1...; -1: none.
func uses(values ...int64) map[string]podMetric {
	out := map[string]podMetric{}
	for i, v := range values {
		if v >= 0 {
			out[fmt.Sprint("p", i)] = podMetric{value: v, at: start, window: 15 * time.Second}
		}
	}
	return out
}

// pods are p0, p1... with one change each.
func pods(changes ...func(*corev1.Pod)) []*corev1.Pod {
	var out []*corev1.Pod
	for i, f := range changes {
		if f == nil {
			f = func(*corev1.Pod) {}
		}
		out = append(out, aPod(fmt.Sprint("p", i), f))
	}
	return out
}

func TestUtilization(t *testing.T) {
	plain := []func(*corev1.Pod){nil, nil, nil}
	for _, c := range []struct {
		what    string
		pods    []func(*corev1.Pod)
		metrics map[string]podMetric
		target  int32
		want    string
	}{
		{"twice as much", plain, uses(600, 600, 600), 30, "6 60% 600m"},
		{"half as much", plain, uses(150, 150, 150), 30, "2 15% 150m"},
		{"within tolerance", plain, uses(320, 320, 320), 30, "3 32% 320m"},
		{"of one more, missing, when too much: it uses nothing", plain, uses(600, 600, -1), 30, "4 60% 600m"},
		{"of one missing, when too little: it uses all it requests", plain, uses(100, 100, -1), 60, "2 10% 100m"},
		{"of one missing, target above 100: it uses that", plain, uses(100, 100, -1), 300, "2 10% 100m"},
		{"pending, when too much", []func(*corev1.Pod){nil, nil, pending}, uses(900, 900), 30, "6 90% 900m"},
		{"pending, when too little", []func(*corev1.Pod){nil, nil, pending}, uses(150, 150), 30, "1 15% 150m"},
		{"going and failed do not count", []func(*corev1.Pod){nil, going, failed}, uses(600, 10, 10), 30, "2 60% 600m"},
		{
			"a change that the unready turn around is none",
			[]func(*corev1.Pod){nil, pending, pending},
			uses(400), 30,
			"3 40% 400m",
		},
		{
			"just ready: no whole window yet", []func(*corev1.Pod){
				nil, nil, started(time.Minute, 5*time.Second, true),
			}, uses(600, 600, 6000), 30, "4 60% 600m",
		},
		{
			"ready for a window",
			[]func(*corev1.Pod){nil, nil, started(time.Minute, 20*time.Second, true)},
			uses(600, 600, 6000), 30, "24 240% 2400m",
		},
		{
			"never ready since its start", []func(*corev1.Pod){
				nil, nil, started(time.Hour, time.Hour-10*time.Second, false),
			}, uses(600, 600, 6000), 30, "4 60% 600m",
		},
		{
			"not ready any more",
			[]func(*corev1.Pod){nil, nil, started(time.Hour, time.Minute, false)},
			uses(600, 600, 600), 30, "6 60% 600m",
		},
		{"no pods", nil, uses(1), 30, "no pods returned by selector while calculating replica count"},
		{"no metrics", plain, nil, 30, "did not receive metrics for targeted pods (pods might be unready)"},
		{
			"only of the unready",
			[]func(*corev1.Pod){pending},
			uses(100), 30,
			"did not receive metrics for targeted pods (pods might be unready)",
		},
		{
			"no request",
			[]func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }},
			uses(100), 30, "missing request for cpu in container app of Pod p0",
		},
	} {
		s := &snapshot{
			hpa:   &scalingv2.HorizontalPodAutoscaler{},
			scale: scale{spec: 3, status: 3},
			pods:  pods(c.pods...),
			now:   start,
		}
		n, percent, average, err := s.utilization(c.metrics, c.target, corev1.ResourceCPU, "")
		got := fmt.Sprintf("%d %d%% %s", n, percent, milliQuantity(average))
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}

// TestReadinessMattersForCPUOnly: memory of a pod that is not ready counts.
func TestReadinessMattersForCPUOnly(t *testing.T) {
	s := &snapshot{
		hpa:   &scalingv2.HorizontalPodAutoscaler{},
		scale: scale{spec: 2},
		pods:  pods(nil, started(time.Minute, time.Minute, false)),
		now:   start,
	}
	n, average, err := s.averageValue(uses(100, 300), 100, corev1.ResourceMemory)
	if err != nil || n != 4 || average != 200 {
		t.Errorf("got %d, %d, %v", n, average, err)
	}
}

func TestRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := aPod("p", func(p *corev1.Pod) {
		side := *p.Spec.Containers[0].DeepCopy()
		side.Name = "side"
		side.RestartPolicy = &always
		p.Spec.InitContainers = []corev1.Container{{Name: "init"}, side}
	})
	for container, want := range map[string]string{
		"":     "2000 <nil>",
		"app":  "1000 <nil>",
		"side": "1000 <nil>",
		"init": "0 container init not found in Pod p",
	} {
		n, err := requestOf(pod, container, corev1.ResourceCPU)
		if got := fmt.Sprint(n, " ", err); got != want {
			t.Errorf("container %q: got %s, want %s", container, got, want)
		}
	}
	pod.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("3")}}
	if n, err := requestOf(pod, "", corev1.ResourceCPU); n != 3000 || err != nil {
		t.Errorf("of the pod: got %d, %v", n, err)
	}
}

// TestMetricsBeyondPods: values of objects and external ones.
func TestMetricsBeyondPods(t *testing.T) {
	snap := &snapshot{
		hpa:   &scalingv2.HorizontalPodAutoscaler{},
		scale: scale{spec: 4, status: 4},
		pods:  pods(nil, nil, pending, nil),
		now:   start,
	}
	for _, c := range []struct{ usage, target, value, perPod, average int64 }{
		{2000, 1000, 6, 2, 500},
		{1050, 1000, 4, 2, 263},
		{500, 1000, 2, 1, 125},
		{0, 1000, 0, 0, 0},
		{1 << 62, 1, 1<<31 - 1, 1<<31 - 1, 1 << 60},
	} {
		if n, err := snap.value(c.usage, c.target); err != nil || int64(n) != c.value {
			t.Errorf("%d of %d: got %d, %v, want %d", c.usage, c.target, n, err, c.value)
		}
		if n, average := snap.perPod(c.usage, c.target); int64(n) != c.perPod || average != c.average {
			t.Errorf("%d of %d for each pod: got %d, %d, want %d, %d", c.usage, c.target, n, average, c.perPod,
				c.average)
		}
	}
	snap.scale = scale{}
	if n, err := snap.value(2500, 1000); n != 3 || err != nil {
		t.Errorf("from zero: got %d, %v", n, err)
	}
	if n, average := snap.perPod(2500, 1000); n != 3 || average != 2500 {
		t.Errorf("from zero, for each pod: got %d, %d", n, average)
	}
}

// TestTolerance: each direction has its own.
func TestTolerance(t *testing.T) {
	q := func(s string) *resource.Quantity {
		v := resource.MustParse(s)
		return &v
	}
	hpa := &scalingv2.HorizontalPodAutoscaler{}
	hpa.Spec.Behavior = &scalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &scalingv2.HPAScalingRules{Tolerance: q("0.5")},
		ScaleDown: &scalingv2.HPAScalingRules{Tolerance: q("0")},
	}
	for ratio, want := range map[float64]bool{
		1.4:  true,
		1.6:  false,
		0.99: false,
		1:    true,
	} {
		if got := (*Config)(nil).toleranceOf(hpa).isWithin(ratio); got != want {
			t.Errorf("%v: got %v", ratio, got)
		}
	}
	if !(*Config)(nil).toleranceOf(&scalingv2.HorizontalPodAutoscaler{}).isWithin(0.9) ||
		(*Config)(nil).toleranceOf(&scalingv2.HorizontalPodAutoscaler{}).isWithin(1.11) {
		t.Error("the default is 0.1")
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		name corev1.ResourceName
		n    int64
		want string
	}{
		{"cpu", 250, "250m"},
		{"cpu", 2000, "2"},
		{"memory", 1852124 * 1024 * 1000, "1852124Ki"},
		{"memory", (21*1024 + 7) * 1000 * 1024 / 2, "10755Ki"}, // an average that is no whole number
		{"memory", 64 * 1024 * 1024 * 1000, "64Mi"},
		{"memory", 1000, "1"},
		{"example.com/x", 1500, "1500m"},
	} {
		if got := usage(tt.name, tt.n).String(); got != tt.want {
			t.Errorf("%d thousandths of %s: got %s, want %s", tt.n, tt.name, got, tt.want)
		}
	}
}
