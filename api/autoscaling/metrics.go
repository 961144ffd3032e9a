// SPDX-License-Identifier: Apache-2.0

package autoscaling

import (
	scalingv1 "k8s.io/api/autoscaling/v1"
	scalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"

	"keelson/api/kind"
)

// use is a target that is an amount or a share of what is asked for.
func use(value *resource.Quantity, utilization *int32) scalingv2.MetricTarget {
	t := scalingv2.MetricTarget{
		Type:               scalingv2.UtilizationMetricType,
		AverageUtilization: utilization,
		AverageValue:       value,
	}
	if utilization == nil {
		t.Type = scalingv2.AverageValueMetricType
	}
	return t
}

// amountOf is a target that is an amount of all, or of each pod.
func amountOf(value, average *resource.Quantity) scalingv2.MetricTarget {
	t := scalingv2.MetricTarget{Type: scalingv2.ValueMetricType, Value: value, AverageValue: average}
	if average != nil {
		t.Type = scalingv2.AverageValueMetricType
	}
	return t
}

// some is a copy of q, or nil for zero, which v1 writes for none.
func some(q resource.Quantity) *resource.Quantity {
	if q.IsZero() {
		return nil
	}
	return &q
}

func specToV2(metricSpec *scalingv1.MetricSpec) scalingv2.MetricSpec {
	out := scalingv2.MetricSpec{Type: scalingv2.MetricSourceType(metricSpec.Type)}
	if o := metricSpec.Object; o != nil {
		out.Object = &scalingv2.ObjectMetricSource{
			DescribedObject: scalingv2.CrossVersionObjectReference(o.Target),
			Metric:          scalingv2.MetricIdentifier{Name: o.MetricName, Selector: o.Selector},
			Target:          amountOf(some(o.TargetValue), o.AverageValue),
		}
	}
	if p := metricSpec.Pods; p != nil {
		out.Pods = &scalingv2.PodsMetricSource{
			Metric: scalingv2.MetricIdentifier{Name: p.MetricName, Selector: p.Selector},
			Target: scalingv2.MetricTarget{Type: scalingv2.AverageValueMetricType, AverageValue: &p.TargetAverageValue},
		}
	}
	if r := metricSpec.Resource; r != nil {
		out.Resource = &scalingv2.ResourceMetricSource{
			Name:   r.Name,
			Target: use(r.TargetAverageValue, r.TargetAverageUtilization),
		}
	}
	if c := metricSpec.ContainerResource; c != nil {
		out.ContainerResource = &scalingv2.ContainerResourceMetricSource{
			Name:      c.Name,
			Container: c.Container,
			Target:    use(c.TargetAverageValue, c.TargetAverageUtilization),
		}
	}
	if e := metricSpec.External; e != nil {
		out.External = &scalingv2.ExternalMetricSource{
			Metric: scalingv2.MetricIdentifier{Name: e.MetricName, Selector: e.MetricSelector},
			Target: amountOf(e.TargetValue, e.TargetAverageValue),
		}
	}
	return out
}

func specToV1(metricSpec *scalingv2.MetricSpec) scalingv1.MetricSpec {
	out := scalingv1.MetricSpec{Type: scalingv1.MetricSourceType(metricSpec.Type)}
	if o := metricSpec.Object; o != nil {
		out.Object = &scalingv1.ObjectMetricSource{
			Target:       scalingv1.CrossVersionObjectReference(o.DescribedObject),
			MetricName:   o.Metric.Name,
			Selector:     o.Metric.Selector,
			TargetValue:  kind.Value(o.Target.Value),
			AverageValue: o.Target.AverageValue,
		}
	}
	if p := metricSpec.Pods; p != nil {
		out.Pods = &scalingv1.PodsMetricSource{
			MetricName:         p.Metric.Name,
			Selector:           p.Metric.Selector,
			TargetAverageValue: kind.Value(p.Target.AverageValue),
		}
	}
	if r := metricSpec.Resource; r != nil {
		out.Resource = &scalingv1.ResourceMetricSource{
			Name:                     r.Name,
			TargetAverageUtilization: r.Target.AverageUtilization,
			TargetAverageValue:       r.Target.AverageValue,
		}
	}
	if c := metricSpec.ContainerResource; c != nil {
		out.ContainerResource = &scalingv1.ContainerResourceMetricSource{
			Name:                     c.Name,
			Container:                c.Container,
			TargetAverageUtilization: c.Target.AverageUtilization,
			TargetAverageValue:       c.Target.AverageValue,
		}
	}
	if e := metricSpec.External; e != nil {
		out.External = &scalingv1.ExternalMetricSource{
			MetricName:         e.Metric.Name,
			MetricSelector:     e.Metric.Selector,
			TargetValue:        e.Target.Value,
			TargetAverageValue: e.Target.AverageValue,
		}
	}
	return out
}

func statusToV2(metricStatus *scalingv1.MetricStatus) scalingv2.MetricStatus {
	out := scalingv2.MetricStatus{Type: scalingv2.MetricSourceType(metricStatus.Type)}
	if o := metricStatus.Object; o != nil {
		out.Object = &scalingv2.ObjectMetricStatus{
			DescribedObject: scalingv2.CrossVersionObjectReference(o.Target),
			Metric:          scalingv2.MetricIdentifier{Name: o.MetricName, Selector: o.Selector},
			Current:         scalingv2.MetricValueStatus{Value: &o.CurrentValue, AverageValue: o.AverageValue},
		}
	}
	if p := metricStatus.Pods; p != nil {
		out.Pods = &scalingv2.PodsMetricStatus{
			Metric:  scalingv2.MetricIdentifier{Name: p.MetricName, Selector: p.Selector},
			Current: scalingv2.MetricValueStatus{AverageValue: &p.CurrentAverageValue},
		}
	}
	if r := metricStatus.Resource; r != nil {
		out.Resource = &scalingv2.ResourceMetricStatus{
			Name: r.Name,
			Current: scalingv2.MetricValueStatus{
				AverageUtilization: r.CurrentAverageUtilization,
				AverageValue:       &r.CurrentAverageValue,
			},
		}
	}
	if c := metricStatus.ContainerResource; c != nil {
		out.ContainerResource = &scalingv2.ContainerResourceMetricStatus{
			Name:      c.Name,
			Container: c.Container,
			Current: scalingv2.MetricValueStatus{
				AverageUtilization: c.CurrentAverageUtilization,
				AverageValue:       &c.CurrentAverageValue,
			},
		}
	}
	if e := metricStatus.External; e != nil {
		out.External = &scalingv2.ExternalMetricStatus{
			Metric:  scalingv2.MetricIdentifier{Name: e.MetricName, Selector: e.MetricSelector},
			Current: scalingv2.MetricValueStatus{Value: &e.CurrentValue, AverageValue: e.CurrentAverageValue},
		}
	}
	return out
}

func statusToV1(metricStatus *scalingv2.MetricStatus) scalingv1.MetricStatus {
	out := scalingv1.MetricStatus{Type: scalingv1.MetricSourceType(metricStatus.Type)}
	if o := metricStatus.Object; o != nil {
		out.Object = &scalingv1.ObjectMetricStatus{
			Target:       scalingv1.CrossVersionObjectReference(o.DescribedObject),
			MetricName:   o.Metric.Name,
			Selector:     o.Metric.Selector,
			CurrentValue: kind.Value(o.Current.Value),
			AverageValue: o.Current.AverageValue,
		}
	}
	if p := metricStatus.Pods; p != nil {
		out.Pods = &scalingv1.PodsMetricStatus{
			MetricName:          p.Metric.Name,
			Selector:            p.Metric.Selector,
			CurrentAverageValue: kind.Value(p.Current.AverageValue),
		}
	}
	if r := metricStatus.Resource; r != nil {
		out.Resource = &scalingv1.ResourceMetricStatus{
			Name:                      r.Name,
			CurrentAverageUtilization: r.Current.AverageUtilization,
			CurrentAverageValue:       kind.Value(r.Current.AverageValue),
		}
	}
	if c := metricStatus.ContainerResource; c != nil {
		out.ContainerResource = &scalingv1.ContainerResourceMetricStatus{
			Name:                      c.Name,
			Container:                 c.Container,
			CurrentAverageUtilization: c.Current.AverageUtilization,
			CurrentAverageValue:       kind.Value(c.Current.AverageValue),
		}
	}
	if e := metricStatus.External; e != nil {
		out.External = &scalingv1.ExternalMetricStatus{
			MetricName:          e.Metric.Name,
			MetricSelector:      e.Metric.Selector,
			CurrentValue:        kind.Value(e.Current.Value),
			CurrentAverageValue: e.Current.AverageValue,
		}
	}
	return out
}
