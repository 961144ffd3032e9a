// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct {
	health, size, unhealthy *prometheus.GaugeVec
	evictions               *prometheus.CounterVec
	update                  prometheus.Histogram
}

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "node_collector", Name: name, Help: help},
			[]string{"zone"})
	}
	return &Metrics{
		health:    gauge("zone_health", "Gauge measuring percentage of healthy nodes per zone."),
		size:      gauge("zone_size", "Gauge measuring number of registered Nodes per zones."),
		unhealthy: gauge("unhealthy_nodes_in_zone", "Gauge measuring number of not Ready Nodes per zones."),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "node_collector",
			Name:      "evictions_total",
			Help:      "Number of Node evictions that happened since current instance of NodeController started.",
		}, []string{"zone"}),
		update: prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: "node_collector",
			Name:      "update_node_health_duration_seconds",
			Help:      "Duration in seconds for NodeController to update the health of a single node.",
			Buckets:   prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.health, m.size, m.unhealthy, m.evictions, m.update}
}

// removeZone removes a zone without nodes.
func (m *Metrics) removeZone(zone string) {
	for _, v := range []*prometheus.GaugeVec{m.health, m.size, m.unhealthy} {
		v.DeleteLabelValues(zone)
	}
	m.evictions.DeleteLabelValues(zone)
}
