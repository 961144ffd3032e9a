// SPDX-License-Identifier: Apache-2.0

// Package autoscaling describes HorizontalPodAutoscaler of autoscaling/v2, which
// is stored, and of autoscaling/v1, which is a view of it: what v1 has no field
// for travels in its annotations. Scale, the other kind of autoscaling/v1, is a
// subresource of the kinds that have it.
package autoscaling

import (
	"fmt"
	"strings"

	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
)

type scaler = scalingv2.HorizontalPodAutoscaler

const defaultUtilization = 80 // percent of the cpu that the pods ask for

func names(version string) kind.Names {
	return kind.Names{
		Group:      scalingv2.GroupName,
		Version:    version,
		Kind:       "HorizontalPodAutoscaler",
		Resource:   "horizontalpodautoscalers",
		Singular:   "horizontalpodautoscaler",
		ShortNames: []string{"hpa"},
		Categories: []string{"all"},
		Namespaced: true,
	}
}

// HorizontalPodAutoscalerV2 describes autoscaling/v2 HorizontalPodAutoscaler.
func HorizontalPodAutoscalerV2() *kind.Kind {
	return kind.Spec[*scaler]{
		Names:          names("v2"),
		New:            func() *scaler { return &scaler{} },
		NewList:        func() runtime.Object { return &scalingv2.HorizontalPodAutoscalerList{} },
		Default:        defaultScaler,
		StoredVersions: map[string]func([]byte) (*scaler, error){"v1": readV1},
		PrepareCreate: func(h *scaler) {
			h.Generation = 1
			h.Status = scalingv2.HorizontalPodAutoscalerStatus{}
		},
		PrepareUpdate: func(h, old *scaler) {
			h.Status = old.Status
			h.Generation = old.Generation
			if !equality.Semantic.DeepEqual(h.Spec, old.Spec) {
				h.Generation++
			}
		},
		Validate:       validateScaler,
		ValidateUpdate: validateScalerUpdate,
		Columns:        scalerColumns,
		Row:            scalerRow,
		Status: &kind.Sub[*scaler]{
			PrepareUpdate:  func(h, old *scaler) { h.Spec = old.Spec },
			ValidateUpdate: func(h, _ *scaler) field.ErrorList { return validateScalerStatus(h) },
		},
	}.Erase()
}

var scalerColumns = []metav1.TableColumnDefinition{
	kind.NameColumn,
	{
		Name:        "Reference",
		Type:        "string",
		Description: scalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["scaleTargetRef"],
	},
	{Name: "Targets", Type: "string", Description: scalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["metrics"]},
	{Name: "MinPods", Type: "string", Description: scalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["minReplicas"]},
	{Name: "MaxPods", Type: "string", Description: scalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["maxReplicas"]},
	{
		Name:        "Replicas",
		Type:        "string",
		Description: scalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"],
	},
	kind.AgeColumn,
}

func defaultScaler(hpa *scaler) {
	kind.Fill(&hpa.Spec.MinReplicas, 1)
	if len(hpa.Spec.Metrics) == 0 {
		n := int32(defaultUtilization)
		hpa.Spec.Metrics = []scalingv2.MetricSpec{{
			Type: scalingv2.ResourceMetricSourceType,
			Resource: &scalingv2.ResourceMetricSource{
				Name:   corev1.ResourceCPU,
				Target: scalingv2.MetricTarget{Type: scalingv2.UtilizationMetricType, AverageUtilization: &n},
			},
		}}
	}
	b := hpa.Spec.Behavior
	if b == nil {
		return
	}
	kind.Fill(&b.ScaleUp, scalingv2.HPAScalingRules{})
	kind.Fill(&b.ScaleUp.StabilizationWindowSeconds, 0)
	defaultRules(b.ScaleUp, scalingv2.HPAScalingPolicy{Type: scalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
		double)
	kind.Fill(&b.ScaleDown, scalingv2.HPAScalingRules{})
	defaultRules(b.ScaleDown, double)
}

// double adds, or takes away, all there is every 15 seconds.
var double = scalingv2.HPAScalingPolicy{Type: scalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}

func defaultRules(r *scalingv2.HPAScalingRules, policies ...scalingv2.HPAScalingPolicy) {
	kind.Fill(&r.SelectPolicy, scalingv2.MaxChangePolicySelect)
	if r.Policies == nil {
		r.Policies = policies
	}
}

func scalerRow(h *scaler) []any {
	lowest := "<unset>"
	if n := h.Spec.MinReplicas; n != nil {
		lowest = fmt.Sprint(*n)
	}
	return []any{
		h.Name, h.Spec.ScaleTargetRef.Kind + "/" + h.Spec.ScaleTargetRef.Name,
		targets(h.Spec.Metrics, h.Status.CurrentMetrics), lowest,
		int64(h.Spec.MaxReplicas), int64(h.Status.CurrentReplicas), kind.Age(h.CreationTimestamp),
	}
}

// targets shows the first two metrics: "cpu: 20%/80%, 3/10 + 1 more...".
func targets(specs []scalingv2.MetricSpec, statuses []scalingv2.MetricStatus) string {
	const most = 2
	if len(specs) == 0 {
		return "<none>"
	}
	var list []string
	for i := range specs {
		var s scalingv2.MetricStatus
		if i < len(statuses) {
			s = statuses[i]
		}
		list = append(list, target(&specs[i], &s))
	}
	if n := len(list) - most; n > 0 {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:most], ", "), n)
	}
	return strings.Join(list, ", ")
}

func target(metricSpec *scalingv2.MetricSpec, metricStatus *scalingv2.MetricStatus) string {
	const unknown = "<unknown type>"
	switch {
	case metricSpec.Type == scalingv2.ExternalMetricSourceType && metricSpec.External != nil:
		return plain(&metricSpec.External.Target, current(metricStatus.External,
			func(x *scalingv2.ExternalMetricStatus) *scalingv2.MetricValueStatus { return &x.Current }))
	case metricSpec.Type == scalingv2.ObjectMetricSourceType && metricSpec.Object != nil:
		return plain(&metricSpec.Object.Target,
			current(metricStatus.Object, func(x *scalingv2.ObjectMetricStatus) *scalingv2.MetricValueStatus {
				return &x.Current
			}))
	case metricSpec.Type == scalingv2.PodsMetricSourceType && metricSpec.Pods != nil:
		now := current(metricStatus.Pods, func(x *scalingv2.PodsMetricStatus) *scalingv2.MetricValueStatus {
			return &x.Current
		})
		return average(now) + "/" + text(metricSpec.Pods.Target.AverageValue)
	case metricSpec.Type == scalingv2.ResourceMetricSourceType && metricSpec.Resource != nil:
		now := current(metricStatus.Resource, func(x *scalingv2.ResourceMetricStatus) *scalingv2.MetricValueStatus {
			return &x.Current
		})
		return string(metricSpec.Resource.Name) + ": " + utilization(&metricSpec.Resource.Target, now)
	case metricSpec.Type == scalingv2.ContainerResourceMetricSourceType && metricSpec.ContainerResource != nil:
		now := current(metricStatus.ContainerResource,
			func(x *scalingv2.ContainerResourceMetricStatus) *scalingv2.MetricValueStatus { return &x.Current })
		return string(metricSpec.ContainerResource.Name) + ": " + utilization(&metricSpec.ContainerResource.Target, now)
	}
	return unknown
}

func current[T any](s *T, of func(*T) *scalingv2.MetricValueStatus) *scalingv2.MetricValueStatus {
	if s == nil {
		return nil
	}
	return of(s)
}

func average(now *scalingv2.MetricValueStatus) string {
	if now == nil {
		return "<unknown>"
	}
	return text(now.AverageValue)
}

func plain(t *scalingv2.MetricTarget, now *scalingv2.MetricValueStatus) string {
	if t.AverageValue != nil {
		return average(now) + "/" + t.AverageValue.String() + " (avg)"
	}
	value := "<unknown>"
	if now != nil {
		value = text(now.Value)
	}
	return value + "/" + text(t.Value)
}

func utilization(t *scalingv2.MetricTarget, now *scalingv2.MetricValueStatus) string {
	if t.AverageValue != nil {
		return average(now) + "/" + t.AverageValue.String()
	}
	value := "<unknown>"
	want := "<auto>"
	if now != nil && now.AverageUtilization != nil {
		value = fmt.Sprintf("%d%%", *now.AverageUtilization)
	}
	if t.AverageUtilization != nil {
		want = fmt.Sprintf("%d%%", *t.AverageUtilization)
	}
	return value + "/" + want
}

func text(q *resource.Quantity) string {
	if q == nil {
		return "<unknown>"
	}
	return q.String()
}
