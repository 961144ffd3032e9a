// SPDX-License-Identifier: Apache-2.0

package podgc

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// gcMetrics are Kubernetes' metrics of this controller.
type gcMetrics struct{ deleted, failed *prometheus.CounterVec }

// metrics is one set for the process, as in Kubernetes.
var metrics = sync.OnceValue(func() *gcMetrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "pod_gc_collector", Name: name, Help: help},
			[]string{"namespace", "reason"})
	}
	return &gcMetrics{
		deleted: counter("force_delete_pods_total",
			"Number of pods that are being forcefully deleted since the Pod GC Controller started."),
		failed: counter("force_delete_pod_errors_total",
			"Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started."),
	}
})

// Collectors are the metrics of all pod garbage collectors in this process.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{metrics().deleted, metrics().failed}
}
