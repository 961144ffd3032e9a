// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// lifecycleMetrics are Kubernetes' metrics of this controller.
type lifecycleMetrics struct {
	health, size, unhealthy *prometheus.GaugeVec
	evictions               *prometheus.CounterVec
	update                  prometheus.Histogram
}

// metrics is one set for the process, as in Kubernetes.
var metrics = sync.OnceValue(func() *lifecycleMetrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "node_collector", Name: name, Help: help},
			[]string{"zone"})
	}
	return &lifecycleMetrics{
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
})

// Collectors are the metrics of all node lifecycle controllers in this process.
func Collectors() []prometheus.Collector {
	m := metrics()
	return []prometheus.Collector{m.health, m.size, m.unhealthy, m.evictions, m.update}
}

// removeZone removes a zone without nodes.
func (c *lifecycleMetrics) removeZone(zone string) {
	for _, v := range []*prometheus.GaugeVec{c.health, c.size, c.unhealthy} {
		v.DeleteLabelValues(zone)
	}
	c.evictions.DeleteLabelValues(zone)
}
