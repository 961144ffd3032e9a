// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"fmt"

	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// proposal is the result of one metric.
type proposal struct {
	n    int32
	name string // its name in events
	// err is set if the number is unknown, with its cause; reason is the condition's reason.
	err, cause error
	reason     string
}

// errorLabel is the metrics label of the error.
func (w proposal) errorLabel() string {
	switch {
	case w.err == nil:
		return none
	case w.reason == "InvalidMetricSourceType":
		return inSpec
	}
	return internal
}

// direction is the direction from current to the proposal.
func (w proposal) direction(current int32) string {
	if w.err != nil {
		return none
	}
	return direction(current, w.n)
}

func failedProposal(reason string, err error, format string, args ...any) proposal {
	return proposal{reason: reason, cause: err, err: fmt.Errorf(format+": %w", append(args, err)...)}
}

// metric computes the result of a metric, and sets its status.
func (s *snapshot) metric(metricSpec *scalingv2.MetricSpec, f *fetched, st *scalingv2.MetricStatus) proposal {
	st.Type = metricSpec.Type
	var w proposal
	switch {
	case metricSpec.Type == scalingv2.ResourceMetricSourceType && metricSpec.Resource != nil:
		w = s.resource(&metricSpec.Resource.Target, metricSpec.Resource.Name, "", f, func(
			now scalingv2.MetricValueStatus,
		) {
			st.Resource = &scalingv2.ResourceMetricStatus{Name: metricSpec.Resource.Name, Current: now}
		})
		if w.cause != nil {
			w = failedProposal("FailedGetResourceMetric", w.cause, "failed to get %s resource metric value",
				metricSpec.Resource.Name)
		}
	case metricSpec.Type == scalingv2.ContainerResourceMetricSourceType && metricSpec.ContainerResource != nil:
		c := metricSpec.ContainerResource
		w = s.resource(&c.Target, c.Name, c.Container, f, func(now scalingv2.MetricValueStatus) {
			st.ContainerResource = &scalingv2.ContainerResourceMetricStatus{
				Name:      c.Name,
				Container: c.Container,
				Current:   now,
			}
		})
		if w.cause != nil {
			w = failedProposal("FailedGetContainerResourceMetric", w.cause, "failed to get %s container metric value",
				c.Container)
		}
	case metricSpec.Type == scalingv2.PodsMetricSourceType && metricSpec.Pods != nil:
		w = s.podsMetric(metricSpec.Pods, f, st)
	case metricSpec.Type == scalingv2.ObjectMetricSourceType && metricSpec.Object != nil:
		w = s.object(metricSpec.Object, f, st)
	case metricSpec.Type == scalingv2.ExternalMetricSourceType && metricSpec.External != nil:
		w = s.external(metricSpec.External, f, st)
	default:
		err := fmt.Errorf("unknown metric source type %q", metricSpec.Type)
		w = proposal{reason: "InvalidMetricSourceType", cause: err, err: err}
	}
	if w.err != nil {
		*st = scalingv2.MetricStatus{} // as if there were no metric
	}
	return w
}

// resource handles both kinds of resource metrics. put receives the status.
func (s *snapshot) resource(
	metricTarget *scalingv2.MetricTarget, name corev1.ResourceName, container string, f *fetched,
	put func(scalingv2.MetricValueStatus),
) proposal {
	fail := func(err error) proposal {
		return proposal{cause: fmt.Errorf("failed to get %s utilization: %w", name, err)}
	}
	switch {
	case f.err != nil:
		return fail(fmt.Errorf("unable to get metrics for resource %s: %w", name, f.err))
	case metricTarget.AverageValue != nil:
		n, average, err := s.averageValue(f.pods, metricTarget.AverageValue.MilliValue(), name)
		if err != nil {
			return fail(err)
		}
		put(scalingv2.MetricValueStatus{AverageValue: usage(name, average)})
		return proposal{n: n, name: fmt.Sprintf("%s resource", name)}
	case metricTarget.AverageUtilization != nil:
		n, percent, average, err := s.utilization(f.pods, *metricTarget.AverageUtilization, name, container)
		if err != nil {
			return fail(err)
		}
		put(scalingv2.MetricValueStatus{AverageUtilization: &percent, AverageValue: usage(name, average)})
		if container != "" {
			return proposal{n: n, name: fmt.Sprintf("%s container resource utilization (percentage of request)", name)}
		}
		return proposal{n: n, name: fmt.Sprintf("%s resource utilization (percentage of request)", name)}
	}
	return proposal{
		cause: errors.New("invalid resource metric source: neither an average utilization target nor an average " +
			"value target was set"),
	}
}

func (s *snapshot) podsMetric(source *scalingv2.PodsMetricSource, f *fetched, st *scalingv2.MetricStatus) proposal {
	const reason, act = "FailedGetPodsMetric", "failed to get pods metric value"
	if f.err != nil {
		return failedProposal(reason, fmt.Errorf("unable to get metric %s: %w", source.Metric.Name, f.err), act)
	}
	if source.Target.AverageValue == nil {
		return failedProposal(reason, errors.New("invalid pods metric source: no average value target was set"), act)
	}
	n, average, err := s.averageValue(f.pods, source.Target.AverageValue.MilliValue(), "")
	if err != nil {
		return failedProposal(reason, err, act)
	}
	st.Pods = &scalingv2.PodsMetricStatus{
		Metric:  source.Metric,
		Current: scalingv2.MetricValueStatus{AverageValue: milliQuantity(average)},
	}
	return proposal{n: n, name: "pods metric " + source.Metric.Name}
}

func (s *snapshot) object(source *scalingv2.ObjectMetricSource, f *fetched, st *scalingv2.MetricStatus) proposal {
	const reason, act = "FailedGetObjectMetric", "failed to get object metric value"
	if f.err != nil {
		o := source.DescribedObject
		return failedProposal(reason, fmt.Errorf("unable to get metric %s: %s on %s %s: %w", source.Metric.Name, o.Kind,
			s.hpa.Namespace, o.Name, f.err), act)
	}
	now := &scalingv2.ObjectMetricStatus{Metric: source.Metric, DescribedObject: source.DescribedObject}
	switch {
	case source.Target.Type == scalingv2.ValueMetricType && source.Target.Value != nil:
		n, err := s.value(f.value, source.Target.Value.MilliValue())
		if err != nil {
			return failedProposal(reason, err, act)
		}
		now.Current.Value = milliQuantity(f.value)
		st.Object = now
		return proposal{n: n, name: fmt.Sprintf("%s metric %s", source.DescribedObject.Kind, source.Metric.Name)}
	case source.Target.Type == scalingv2.AverageValueMetricType && source.Target.AverageValue != nil:
		n, average := s.perPod(f.value, source.Target.AverageValue.MilliValue())
		now.Current.AverageValue = milliQuantity(average)
		st.Object = now
		return proposal{n: n, name: fmt.Sprintf("external metric %s(%+v)", source.Metric.Name, source.Metric.Selector)}
	}
	return failedProposal(reason,
		errors.New("invalid object metric source: neither a value target nor an average value target was set"), act)
}

func (s *snapshot) external(source *scalingv2.ExternalMetricSource, f *fetched, st *scalingv2.MetricStatus) proposal {
	const reason, act = "FailedGetExternalMetric", "failed to get %s external metric value"
	if f.err != nil {
		err := fmt.Errorf("unable to get external metric %s/%s/%+v: %w", s.hpa.Namespace, source.Metric.Name,
			source.Metric.Selector, f.err)
		return failedProposal(reason, err, act, source.Metric.Name)
	}
	now := &scalingv2.ExternalMetricStatus{Metric: source.Metric}
	name := fmt.Sprintf("external metric %s(%+v)", source.Metric.Name, source.Metric.Selector)
	switch {
	case source.Target.AverageValue != nil:
		n, average := s.perPod(f.value, source.Target.AverageValue.MilliValue())
		now.Current.AverageValue = milliQuantity(average)
		st.External = now
		return proposal{n: n, name: name}
	case source.Target.Value != nil:
		n, err := s.value(f.value, source.Target.Value.MilliValue())
		if err != nil {
			return failedProposal(reason, err, act, source.Metric.Name)
		}
		now.Current.Value = milliQuantity(f.value)
		st.External = now
		return proposal{n: n, name: name}
	}
	return failedProposal(reason,
		errors.New("invalid external metric source: neither a value target nor an average value target was set"), act,
		source.Metric.Name)
}
