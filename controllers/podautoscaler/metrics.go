// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	scalingv2 "k8s.io/api/autoscaling/v2"
)

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct {
	reconciliations *prometheus.CounterVec
	duration        *prometheus.HistogramVec
	metrics         *prometheus.CounterVec
	measured        *prometheus.HistogramVec
	autoscalers     prometheus.Gauge
	desired         *prometheus.GaugeVec
}

// The values of the labels "action" and "error".
const (
	scaleUp, scaleDown, none = "scale_up", "scale_down", "none"
	inSpec, internal         = "spec", "internal"
)

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	const sub, labels = "horizontal_pod_autoscaler_controller",
		"The label 'action' is 'scale_down', 'scale_up' or 'none', the label 'error' 'spec', 'internal' or 'none'."
	buckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &Metrics{
		reconciliations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: sub,
			Name:      "reconciliations_total",
			Help:      "Number of reconciliations of HPA controller. " + labels,
		}, []string{"action", "error"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: sub,
			Name:      "reconciliation_duration_seconds",
			Help:      "The time(seconds) that the HPA controller takes to reconcile once. " + labels,
			Buckets:   buckets,
		}, []string{"action", "error"}),
		metrics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: sub,
			Name:      "metric_computation_total",
			Help:      "Number of metric computations. " + labels,
		}, []string{"action", "error", "metric_type"}),
		measured: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: sub,
			Name:      "metric_computation_duration_seconds",
			Help:      "The time(seconds) that the HPA controller takes to calculate one metric. " + labels,
			Buckets:   buckets,
		}, []string{"action", "error", "metric_type"}),
		autoscalers: prometheus.NewGauge(prometheus.GaugeOpts{
			Subsystem: sub,
			Name:      "num_horizontal_pod_autoscalers",
			Help:      "Current number of controlled HPA objects.",
		}),
		desired: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Subsystem: sub,
			Name:      "desired_replicas",
			Help:      "Current desired replica count for HPA objects.",
		}, []string{"namespace", "hpa_name"}),
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.reconciliations, m.duration, m.metrics, m.measured, m.autoscalers, m.desired}
}

// metricComputation is the computation of one metric.
type metricComputation struct {
	kind               scalingv2.MetricSourceType
	action, errorLabel string
	took               time.Duration
}

// outcome is the result of one pass.
type outcome struct{ action, errorLabel string }

func (m *Metrics) observe(o outcome, all []metricComputation, took time.Duration) {
	m.reconciliations.WithLabelValues(o.action, o.errorLabel).Inc()
	m.duration.WithLabelValues(o.action, o.errorLabel).Observe(took.Seconds())
	for _, c := range all {
		m.metrics.WithLabelValues(c.action, c.errorLabel, string(c.kind)).Inc()
		m.measured.WithLabelValues(c.action, c.errorLabel, string(c.kind)).Observe(c.took.Seconds())
	}
}

// direction is the action for a change of replicas.
func direction(from, to int32) string {
	switch {
	case to > from:
		return scaleUp
	case to < from:
		return scaleDown
	}
	return none
}
