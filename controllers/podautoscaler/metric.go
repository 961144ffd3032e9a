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
func (s *snapshot) metric(m *scalingv2.MetricSpec, f *fetched, st *scalingv2.MetricStatus) proposal {
	st.Type = m.Type
	var w proposal
	switch {
	case m.Type == scalingv2.ResourceMetricSourceType && m.Resource != nil:
		w = s.resource(&m.Resource.Target, m.Resource.Name, "", f, func(now scalingv2.MetricValueStatus) {
			st.Resource = &scalingv2.ResourceMetricStatus{Name: m.Resource.Name, Current: now}
		})
		if w.cause != nil {
			w = failedProposal("FailedGetResourceMetric", w.cause, "failed to get %s resource metric value",
				m.Resource.Name)
		}
	case m.Type == scalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		c := m.ContainerResource
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
	case m.Type == scalingv2.PodsMetricSourceType && m.Pods != nil:
		w = s.podsMetric(m.Pods, f, st)
	case m.Type == scalingv2.ObjectMetricSourceType && m.Object != nil:
		w = s.object(m.Object, f, st)
	case m.Type == scalingv2.ExternalMetricSourceType && m.External != nil:
		w = s.external(m.External, f, st)
	default:
		err := fmt.Errorf("unknown metric source type %q", m.Type)
		w = proposal{reason: "InvalidMetricSourceType", cause: err, err: err}
	}
	if w.err != nil {
		*st = scalingv2.MetricStatus{} // as if there were no metric
	}
	return w
}

// resource handles both kinds of resource metrics. put receives the status.
func (s *snapshot) resource(
	t *scalingv2.MetricTarget, name corev1.ResourceName, container string, f *fetched,
	put func(scalingv2.MetricValueStatus),
) proposal {
	fail := func(err error) proposal {
		return proposal{cause: fmt.Errorf("failed to get %s utilization: %w", name, err)}
	}
	switch {
	case f.err != nil:
		return fail(fmt.Errorf("unable to get metrics for resource %s: %w", name, f.err))
	case t.AverageValue != nil:
		n, average, err := s.averageValue(f.pods, t.AverageValue.MilliValue(), name)
		if err != nil {
			return fail(err)
		}
		put(scalingv2.MetricValueStatus{AverageValue: milliQuantity(average)})
		return proposal{n: n, name: fmt.Sprintf("%s resource", name)}
	case t.AverageUtilization != nil:
		n, percent, average, err := s.utilization(f.pods, *t.AverageUtilization, name, container)
		if err != nil {
			return fail(err)
		}
		put(scalingv2.MetricValueStatus{AverageUtilization: &percent, AverageValue: milliQuantity(average)})
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

func (s *snapshot) podsMetric(m *scalingv2.PodsMetricSource, f *fetched, st *scalingv2.MetricStatus) proposal {
	const reason, act = "FailedGetPodsMetric", "failed to get pods metric value"
	if f.err != nil {
		return failedProposal(reason, fmt.Errorf("unable to get metric %s: %w", m.Metric.Name, f.err), act)
	}
	if m.Target.AverageValue == nil {
		return failedProposal(reason, errors.New("invalid pods metric source: no average value target was set"), act)
	}
	n, average, err := s.averageValue(f.pods, m.Target.AverageValue.MilliValue(), "")
	if err != nil {
		return failedProposal(reason, err, act)
	}
	st.Pods = &scalingv2.PodsMetricStatus{
		Metric:  m.Metric,
		Current: scalingv2.MetricValueStatus{AverageValue: milliQuantity(average)},
	}
	return proposal{n: n, name: "pods metric " + m.Metric.Name}
}

func (s *snapshot) object(m *scalingv2.ObjectMetricSource, f *fetched, st *scalingv2.MetricStatus) proposal {
	const reason, act = "FailedGetObjectMetric", "failed to get object metric value"
	if f.err != nil {
		o := m.DescribedObject
		return failedProposal(reason, fmt.Errorf("unable to get metric %s: %s on %s %s: %w", m.Metric.Name, o.Kind,
			s.hpa.Namespace, o.Name, f.err), act)
	}
	now := &scalingv2.ObjectMetricStatus{Metric: m.Metric, DescribedObject: m.DescribedObject}
	switch {
	case m.Target.Type == scalingv2.ValueMetricType && m.Target.Value != nil:
		n, err := s.value(f.value, m.Target.Value.MilliValue())
		if err != nil {
			return failedProposal(reason, err, act)
		}
		now.Current.Value = milliQuantity(f.value)
		st.Object = now
		return proposal{n: n, name: fmt.Sprintf("%s metric %s", m.DescribedObject.Kind, m.Metric.Name)}
	case m.Target.Type == scalingv2.AverageValueMetricType && m.Target.AverageValue != nil:
		n, average := s.perPod(f.value, m.Target.AverageValue.MilliValue())
		now.Current.AverageValue = milliQuantity(average)
		st.Object = now
		return proposal{n: n, name: fmt.Sprintf("external metric %s(%+v)", m.Metric.Name, m.Metric.Selector)}
	}
	return failedProposal(reason,
		errors.New("invalid object metric source: neither a value target nor an average value target was set"), act)
}

func (s *snapshot) external(m *scalingv2.ExternalMetricSource, f *fetched, st *scalingv2.MetricStatus) proposal {
	const reason, act = "FailedGetExternalMetric", "failed to get %s external metric value"
	if f.err != nil {
		err := fmt.Errorf("unable to get external metric %s/%s/%+v: %w", s.hpa.Namespace, m.Metric.Name,
			m.Metric.Selector, f.err)
		return failedProposal(reason, err, act, m.Metric.Name)
	}
	now := &scalingv2.ExternalMetricStatus{Metric: m.Metric}
	name := fmt.Sprintf("external metric %s(%+v)", m.Metric.Name, m.Metric.Selector)
	switch {
	case m.Target.AverageValue != nil:
		n, average := s.perPod(f.value, m.Target.AverageValue.MilliValue())
		now.Current.AverageValue = milliQuantity(average)
		st.External = now
		return proposal{n: n, name: name}
	case m.Target.Value != nil:
		n, err := s.value(f.value, m.Target.Value.MilliValue())
		if err != nil {
			return failedProposal(reason, err, act, m.Metric.Name)
		}
		now.Current.Value = milliQuantity(f.value)
		st.External = now
		return proposal{n: n, name: name}
	}
	return failedProposal(reason,
		errors.New("invalid external metric source: neither a value target nor an average value target was set"), act,
		m.Metric.Name)
}
