// SPDX-License-Identifier: Apache-2.0

package tainteviction

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct {
	deletions prometheus.Counter
	latency   prometheus.Histogram
}

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	return &Metrics{
		deletions: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "taint_eviction_controller",
			Name:      "pod_deletions_total",
			Help:      "Total number of Pods deleted by TaintEvictionController since its start.",
		}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: "taint_eviction_controller",
			Name:      "pod_deletion_duration_seconds",
			Help: "Latency, in seconds, between the time when a taint effect has been activated for the Pod and " +
				"its deletion via TaintEvictionController.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
		}),
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.deletions, m.latency}
}
