// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	scalingv2 "k8s.io/api/autoscaling/v2"
)

// counts are Kubernetes' metrics of this controller.
type counts struct {
	passes   *prometheus.CounterVec
	took     *prometheus.HistogramVec
	metrics  *prometheus.CounterVec
	measured *prometheus.HistogramVec
	number   prometheus.Gauge
	desired  *prometheus.GaugeVec
}

// The values of the labels "action" and "error".
const (
	scaleUp, scaleDown, none = "scale_up", "scale_down", "none"
	inSpec, internal         = "spec", "internal"
)

// metrics is one set for the process, as in Kubernetes.
var metrics = sync.OnceValue(func() *counts {
	const sub, labels = "horizontal_pod_autoscaler_controller", "The label 'action' is 'scale_down', 'scale_up' or 'none', the label 'error' 'spec', 'internal' or 'none'."
	buckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &counts{
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: sub, Name: "reconciliations_total", Help: "Number of reconciliations of HPA controller. " + labels,
		}, []string{"action", "error"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: sub, Name: "reconciliation_duration_seconds", Help: "The time(seconds) that the HPA controller takes to reconcile once. " + labels, Buckets: buckets,
		}, []string{"action", "error"}),
		metrics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: sub, Name: "metric_computation_total", Help: "Number of metric computations. " + labels,
		}, []string{"action", "error", "metric_type"}),
		measured: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: sub, Name: "metric_computation_duration_seconds", Help: "The time(seconds) that the HPA controller takes to calculate one metric. " + labels, Buckets: buckets,
		}, []string{"action", "error", "metric_type"}),
		number: prometheus.NewGauge(prometheus.GaugeOpts{Subsystem: sub, Name: "num_horizontal_pod_autoscalers", Help: "Current number of controlled HPA objects."}),
		desired: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Subsystem: sub, Name: "desired_replicas", Help: "Current desired replica count for HPA objects.",
		}, []string{"namespace", "hpa_name"}),
	}
})

// Collectors are the metrics of all autoscaler controllers in this process.
func Collectors() []prometheus.Collector {
	m := metrics()
	return []prometheus.Collector{m.passes, m.took, m.metrics, m.measured, m.number, m.desired}
}

// computed is the computation of one metric.
type computed struct {
	kind          scalingv2.MetricSourceType
	action, fault string
	took          time.Duration
}

// outcome is the result of one pass.
type outcome struct{ action, fault string }

func (m *counts) pass(o outcome, all []computed, took time.Duration) {
	m.passes.WithLabelValues(o.action, o.fault).Inc()
	m.took.WithLabelValues(o.action, o.fault).Observe(took.Seconds())
	for _, c := range all {
		m.metrics.WithLabelValues(c.action, c.fault, string(c.kind)).Inc()
		m.measured.WithLabelValues(c.action, c.fault, string(c.kind)).Observe(c.took.Seconds())
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
