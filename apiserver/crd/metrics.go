// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// HookMetrics are Kubernetes' metrics of conversion webhook calls.
type HookMetrics struct {
	calls *prometheus.CounterVec
	took  *prometheus.HistogramVec
}

// NewHookMetrics returns the metrics of all definitions.
func NewHookMetrics() *HookMetrics {
	labels := []string{"result", "failure_type"}
	return &HookMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_crd_conversion_webhook_request_total",
			Help: "Counter for conversion webhook requests with success/failure and failure error type",
		}, labels),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_crd_conversion_webhook_duration_seconds",
			Help:    "Conversion webhook request latency",
			Buckets: []float64{0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 25, 30},
		}, labels),
	}
}

// Collectors are the metrics.
func (m *HookMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.took}
}

// observe counts one call.
func (m *HookMetrics) observe(err error, took time.Duration) {
	if m == nil {
		return
	}
	result := "success"
	failure := ""
	switch _, unanswered := errors.AsType[callError](err); {
	case unanswered:
		result = "failure"
		failure = "conversion_webhook_call_failure"
	case err != nil:
		result = "failure"
		failure = "conversion_webhook_invalid_response_failure"
	}
	m.calls.WithLabelValues(result, failure).Inc()
	m.took.WithLabelValues(result, failure).Observe(took.Seconds())
}
