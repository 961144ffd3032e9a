// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of Kubernetes' kubelet, with its names and labels.
type metrics struct {
	registrations *prometheus.CounterVec
	allocations   *prometheus.HistogramVec
}

func newMetrics() metrics {
	labels := []string{"resource_name"}
	return metrics{
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet",
			Name:      "device_plugin_registration_total",
			Help:      "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.",
		}, labels),
		allocations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet",
			Name:      "device_plugin_alloc_duration_seconds",
			Help: "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by " +
				"resource name.",
		}, labels),
	}
}

// Describe sends the descriptions of the metrics.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.registrations.Describe(ch)
	m.allocations.Describe(ch)
}

// Collect sends the metrics.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.registrations.Collect(ch)
	m.allocations.Collect(ch)
}
