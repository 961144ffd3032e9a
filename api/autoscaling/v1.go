// SPDX-License-Identifier: Apache-2.0

package autoscaling

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"

	scalingv1 "k8s.io/api/autoscaling/v1"
	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
	"keelson/lib/quantity"
)

// Annotations of v1 objects that carry what v1 has no field for, in v1's own words.
const (
	metricsNote    = "autoscaling.alpha.kubernetes.io/metrics"
	currentNote    = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsNote = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorNote   = "autoscaling.alpha.kubernetes.io/behavior"
)

var notes = []string{metricsNote, currentNote, conditionsNote, behaviorNote}

type oldScaler = scalingv1.HorizontalPodAutoscaler

// HorizontalPodAutoscalerV1 describes autoscaling/v1 HorizontalPodAutoscaler. Every rule is v2's.
func HorizontalPodAutoscalerV1() *kind.Kind {
	return kind.Spec[*oldScaler]{
		Names:   names("v1"),
		New:     func() *oldScaler { return &oldScaler{} },
		NewList: func() runtime.Object { return &scalingv1.HorizontalPodAutoscalerList{} },
		Default: func(h *oldScaler) {
			kind.Fill(&h.Spec.MinReplicas, 1)
			if _, others := h.Annotations[metricsNote]; !others {
				kind.Fill(&h.Spec.TargetCPUUtilizationPercentage, defaultUtilization)
			}
		},
		PrepareCreate: func(h *oldScaler) {
			h.Generation = 1
			h.Status = scalingv1.HorizontalPodAutoscalerStatus{}
			a := maps.Clone(h.Annotations)
			delete(a, currentNote)
			delete(a, conditionsNote)
			h.Annotations = a
		},
		PrepareUpdate: func(h, old *oldScaler) {
			h.Status = old.Status
			h.Generation = old.Generation
			keepNotes(h, old, currentNote, conditionsNote)
			if !equality.Semantic.DeepEqual(ToV2(h).Spec, ToV2(old).Spec) {
				h.Generation++
			}
		},
		Validate:       func(h *oldScaler) field.ErrorList { return validateScaler(ToV2(h)) },
		ValidateUpdate: func(h, old *oldScaler) field.ErrorList { return validateScalerUpdate(ToV2(h), ToV2(old)) },
		Columns:        scalerColumns,
		Row:            func(h *oldScaler) []any { return scalerRow(ToV2(h)) },
		Status: &kind.Sub[*oldScaler]{
			PrepareUpdate: func(h, old *oldScaler) {
				h.Spec = old.Spec
				keepNotes(h, old, metricsNote, behaviorNote)
			},
			ValidateUpdate: func(h, _ *oldScaler) field.ErrorList { return validateScalerStatus(ToV2(h)) },
		},
	}.Erase()
}

// keepNotes sets autoscaler's annotations of those names to old's.
func keepNotes(autoscaler, old *oldScaler, names ...string) {
	a := maps.Clone(autoscaler.Annotations)
	for _, n := range names {
		delete(a, n)
		if v, ok := old.Annotations[n]; ok {
			if a == nil {
				a = map[string]string{}
			}
			a[n] = v
		}
	}
	autoscaler.Annotations = a
}

// readV1 reads what servers up to 1.25 stored.
func readV1(doc []byte) (*scaler, error) {
	var old oldScaler
	if err := json.Unmarshal(doc, &old); err != nil {
		return nil, fmt.Errorf("read autoscaler: %w", err)
	}
	out := ToV2(&old)
	out.TypeMeta = metav1.TypeMeta{}
	return out, nil
}

// ToV2 converts to the stored form. The object is new, its parts may be shared. An annotation that cannot be read
// counts as absent.
func ToV2(autoscaler *oldScaler) *scaler {
	out := &scaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: scalingv2.SchemeGroupVersion.String(), Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: autoscaler.ObjectMeta,
		Spec: scalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: scalingv2.CrossVersionObjectReference(autoscaler.Spec.ScaleTargetRef),
			MinReplicas:    autoscaler.Spec.MinReplicas,
			MaxReplicas:    autoscaler.Spec.MaxReplicas,
		},
		Status: scalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: autoscaler.Status.ObservedGeneration,
			LastScaleTime:      autoscaler.Status.LastScaleTime,
			CurrentReplicas:    autoscaler.Status.CurrentReplicas,
			DesiredReplicas:    autoscaler.Status.DesiredReplicas,
		},
	}
	var metrics []scalingv1.MetricSpec
	read(autoscaler.Annotations, metricsNote, &metrics)
	if n := autoscaler.Spec.TargetCPUUtilizationPercentage; n != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, scalingv2.MetricSpec{
			Type: scalingv2.ResourceMetricSourceType,
			Resource: &scalingv2.ResourceMetricSource{
				Name:   corev1.ResourceCPU,
				Target: scalingv2.MetricTarget{Type: scalingv2.UtilizationMetricType, AverageUtilization: n},
			},
		})
	}
	for i := range metrics {
		out.Spec.Metrics = append(out.Spec.Metrics, specToV2(&metrics[i]))
	}
	var behavior *scalingv2.HorizontalPodAutoscalerBehavior
	read(autoscaler.Annotations, behaviorNote, &behavior)
	out.Spec.Behavior = behavior
	var now []scalingv1.MetricStatus
	read(autoscaler.Annotations, currentNote, &now)
	if n := autoscaler.Status.CurrentCPUUtilizationPercentage; n != nil {
		out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, scalingv2.MetricStatus{
			Type: scalingv2.ResourceMetricSourceType,
			Resource: &scalingv2.ResourceMetricStatus{
				Name:    corev1.ResourceCPU,
				Current: scalingv2.MetricValueStatus{AverageUtilization: n},
			},
		})
	}
	for i := range now {
		out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, statusToV2(&now[i]))
	}
	read(autoscaler.Annotations, conditionsNote, &out.Status.Conditions)
	out.Annotations = without(autoscaler.Annotations)
	return out
}

// FromV2 converts from the stored form. The object is new, its parts may be shared.
func FromV2(hpa *scaler) *oldScaler {
	out := &oldScaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: scalingv1.SchemeGroupVersion.String(), Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: hpa.ObjectMeta,
		Spec: scalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: scalingv1.CrossVersionObjectReference(hpa.Spec.ScaleTargetRef),
			MinReplicas:    hpa.Spec.MinReplicas,
			MaxReplicas:    hpa.Spec.MaxReplicas,
		},
		Status: scalingv1.HorizontalPodAutoscalerStatus{
			ObservedGeneration: hpa.Status.ObservedGeneration,
			LastScaleTime:      hpa.Status.LastScaleTime,
			CurrentReplicas:    hpa.Status.CurrentReplicas,
			DesiredReplicas:    hpa.Status.DesiredReplicas,
		},
	}
	out.Annotations = without(hpa.Annotations)
	var metrics []scalingv1.MetricSpec
	for i := range hpa.Spec.Metrics {
		m := &hpa.Spec.Metrics[i]
		if r := m.Resource; r != nil && r.Name == corev1.ResourceCPU && r.Target.AverageUtilization != nil &&
			out.Spec.TargetCPUUtilizationPercentage == nil {
			out.Spec.TargetCPUUtilizationPercentage = r.Target.AverageUtilization
			continue
		}
		metrics = append(metrics, specToV1(m))
	}
	var now []scalingv1.MetricStatus
	for i := range hpa.Status.CurrentMetrics {
		m := &hpa.Status.CurrentMetrics[i]
		if r := m.Resource; r != nil && r.Name == corev1.ResourceCPU && r.Current.AverageUtilization != nil &&
			out.Status.CurrentCPUUtilizationPercentage == nil {
			out.Status.CurrentCPUUtilizationPercentage = r.Current.AverageUtilization
			if r.Current.AverageValue == nil {
				continue
			}
		}
		now = append(now, statusToV1(m))
	}
	write(out, metricsNote, metrics, len(metrics) > 0)
	write(out, currentNote, now, len(now) > 0)
	write(out, conditionsNote, hpa.Status.Conditions, len(hpa.Status.Conditions) > 0)
	write(out, behaviorNote, hpa.Spec.Behavior, hpa.Spec.Behavior != nil)
	return out
}

func without(annotations map[string]string) map[string]string {
	a := maps.Clone(annotations)
	for _, n := range notes {
		delete(a, n)
	}
	return a
}

func read(annotations map[string]string, note string, into any) {
	text, ok := annotations[note]
	if !ok || quantity.CheckJSON([]byte(text), reflect.TypeOf(into)) != nil {
		return
	}
	_ = json.Unmarshal([]byte(text), into) // as documented: unreadable counts as absent
}

func write(autoscaler *oldScaler, note string, v any, present bool) {
	if !present {
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		return // these types always marshal
	}
	if autoscaler.Annotations == nil {
		autoscaler.Annotations = map[string]string{}
	}
	autoscaler.Annotations[note] = string(b)
}
