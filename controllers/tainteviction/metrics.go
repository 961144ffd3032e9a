// SPDX-License-Identifier: Apache-2.0

package tainteviction

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are Kubernetes' metrics of this controller.
type counts struct {
	deletions prometheus.Counter
	latency   prometheus.Histogram
}

// metrics is one set for the process, as in Kubernetes.
var metrics = sync.OnceValue(func() *counts {
	return &counts{
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
})

// Collectors are the metrics of all taint eviction controllers in this process.
func Collectors() []prometheus.Collector {
	m := metrics()
	return []prometheus.Collector{m.deletions, m.latency}
}
