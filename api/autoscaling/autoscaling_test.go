// SPDX-License-Identifier: Apache-2.0

package autoscaling

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	scalingv1 "k8s.io/api/autoscaling/v1"
	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func amount(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

// full has a metric of every kind, in both forms where there are two, and everything that v1 has no field for.
func full() *scaler {
	percent := int32(50)
	window := int32(60)
	target := scalingv2.CrossVersionObjectReference{Kind: "Service", Name: "web", APIVersion: "v1"}
	return &scaler{
		TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "default",
			Name:        "web",
			Annotations: map[string]string{"mine": "kept"},
		},
		Spec: scalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: scalingv2.CrossVersionObjectReference{
				Kind:       "Deployment",
				Name:       "web",
				APIVersion: "apps/v1",
			},
			MinReplicas: new(int32(2)),
			MaxReplicas: 9,
			Metrics: []scalingv2.MetricSpec{
				{
					Type:     "Resource",
					Resource: &scalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: use(nil, &percent)},
				},
				{
					Type: "Resource",
					Resource: &scalingv2.ResourceMetricSource{
						Name:   corev1.ResourceMemory,
						Target: use(amount("1Gi"), nil),
					},
				},
				{
					Type: "Pods",
					Pods: &scalingv2.PodsMetricSource{
						Metric: scalingv2.MetricIdentifier{Name: "packets"},
						Target: scalingv2.MetricTarget{Type: "AverageValue", AverageValue: amount("1k")},
					},
				},
				{
					Type: "Object",
					Object: &scalingv2.ObjectMetricSource{
						DescribedObject: target,
						Metric:          scalingv2.MetricIdentifier{Name: "hits"},
						Target:          amountOf(amount("10"), nil),
					},
				},
				{
					Type: "External",
					External: &scalingv2.ExternalMetricSource{
						Metric: scalingv2.MetricIdentifier{
							Name:     "queue",
							Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
						},
						Target: amountOf(nil, amount("30")),
					},
				},
				{
					Type: "ContainerResource",
					ContainerResource: &scalingv2.ContainerResourceMetricSource{
						Name:      corev1.ResourceCPU,
						Container: "web",
						Target:    use(nil, &percent),
					},
				},
			},
			Behavior: &scalingv2.HorizontalPodAutoscalerBehavior{
				ScaleDown: &scalingv2.HPAScalingRules{StabilizationWindowSeconds: &window},
			},
		},
		Status: scalingv2.HorizontalPodAutoscalerStatus{
			CurrentReplicas: 3,
			DesiredReplicas: 4,
			CurrentMetrics: []scalingv2.MetricStatus{
				{
					Type: "Pods",
					Pods: &scalingv2.PodsMetricStatus{
						Metric:  scalingv2.MetricIdentifier{Name: "packets"},
						Current: scalingv2.MetricValueStatus{AverageValue: amount("2k")},
					},
				},
			},
			Conditions: []scalingv2.HorizontalPodAutoscalerCondition{
				{Type: scalingv2.AbleToScale, Status: corev1.ConditionTrue, Reason: "R"},
			},
		},
	}
}

// TestVersions: what is stored survives a client of v1 that reads it and writes it back.
func TestVersions(t *testing.T) {
	stored := full()
	before := stored.DeepCopy()
	old := FromV2(stored)
	if !equality.Semantic.DeepEqual(stored, before) {
		t.Fatal("conversion changed the stored object")
	}
	if n := old.Spec.TargetCPUUtilizationPercentage; n == nil || *n != 50 {
		t.Errorf("cpu target in v1: got %v, want 50", n)
	}
	for _, note := range notes {
		if old.Annotations[note] == "" {
			t.Errorf("v1 lacks annotation %s", note)
		}
	}
	if d := cmp.Diff(stored, ToV2(old)); d != "" {
		t.Errorf("through v1 (-want +got):\n%s", d)
	}
}

func TestUnreadableAnnotation(t *testing.T) {
	h := &oldScaler{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{metricsNote: "{", behaviorNote: "["}}}
	if got := ToV2(h); len(got.Spec.Metrics) != 0 || got.Spec.Behavior != nil || len(got.Annotations) != 0 {
		t.Errorf("unreadable annotations: got %+v, want them to count as absent", got)
	}
}

// TestDearAnnotation: an annotation with a quantity of millions of digits is unreadable.
func TestDearAnnotation(t *testing.T) {
	for value, want := range map[string]int{"5": 1, "1e2880888": 0} {
		h := &oldScaler{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			metricsNote: `[{"type":"Pods","pods":{"metricName":"a","targetAverageValue":"` + value + `"}}]`,
		}}}
		if got := ToV2(h); len(got.Spec.Metrics) != want {
			t.Errorf("%s: got %+v", value, got.Spec.Metrics)
		}
	}
}

// TestStatusKeepsSpec: a client of v1 changes the status by annotations too, and only that.
func TestStatusKeepsSpec(t *testing.T) {
	k := HorizontalPodAutoscalerV1()
	old := FromV2(full())
	h := old.DeepCopy()
	h.Annotations[behaviorNote] = `{"scaleUp":{}}`
	h.Annotations[conditionsNote] = `[]`
	h.Spec.MaxReplicas = 1
	h.Status = scalingv1.HorizontalPodAutoscalerStatus{CurrentReplicas: 7}
	k.Subs["status"].PrepareUpdate(h, old)
	if h.Annotations[behaviorNote] != old.Annotations[behaviorNote] || h.Annotations[conditionsNote] != `[]` ||
		h.Spec.MaxReplicas != 9 || h.Status.CurrentReplicas != 7 {
		t.Errorf("status update: got %+v", h)
	}
}

func TestTargets(t *testing.T) {
	h := full()
	want := "cpu: <unknown>/50%, memory: <unknown>/1Gi + 4 more..."
	if got := targets(h.Spec.Metrics, nil); got != want {
		t.Errorf("targets: got %q, want %q", got, want)
	}
	if got := targets(h.Spec.Metrics[2:3], h.Status.CurrentMetrics); got != "2k/1k" {
		t.Errorf("pods: got %q", got)
	}
	if got := targets(h.Spec.Metrics[4:5], nil); got != "<unknown>/30 (avg)" {
		t.Errorf("external: got %q", got)
	}
}
