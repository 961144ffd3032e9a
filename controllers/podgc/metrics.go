// SPDX-License-Identifier: Apache-2.0

package podgc

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct{ deleted, failed *prometheus.CounterVec }

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "pod_gc_collector", Name: name, Help: help},
			[]string{"namespace", "reason"})
	}
	return &Metrics{
		deleted: counter("force_delete_pods_total",
			"Number of pods that are being forcefully deleted since the Pod GC Controller started."),
		failed: counter("force_delete_pod_errors_total",
			"Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started."),
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.deleted, m.failed}
}
