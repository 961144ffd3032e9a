// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of a proxy, with the names of kube-proxy's. NewMetrics makes them.
type Metrics struct {
	syncDuration, syncFull, syncPartial, programming prometheus.Histogram
	lastSync                                         prometheus.Gauge
	endpointChanges, serviceChanges, failures        prometheus.Counter
}

// NewMetrics returns the metrics of one proxy.
func NewMetrics() *Metrics {
	syncs := prometheus.ExponentialBuckets(0.001, 2, 15)
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &Metrics{
		syncDuration: histogram("kubeproxy_sync_proxy_rules_duration_seconds",
			"Time of a write of the rules of services.", syncs),
		syncFull: histogram("kubeproxy_sync_full_proxy_rules_duration_seconds",
			"Time of a write of all rules of services.", syncs),
		syncPartial: histogram("kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"Time of a write of changed rules of services.", syncs),
		programming: histogram("kubeproxy_network_programming_duration_seconds",
			"Time from a change of a pod or service to the rules.",
			append([]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25}, prometheus.ExponentialBuckets(0.5, 2, 10)...)),
		lastSync: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			Help: "When the rules of services were written last.",
		}),
		endpointChanges: counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Changes of endpoint slices."),
		serviceChanges:  counter("kubeproxy_sync_proxy_rules_service_changes_total", "Changes of services."),
		failures: counter("kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
			"Writes of rules that failed."),
	}
}

// Collectors are the metrics for a registry.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.syncDuration, m.syncFull, m.syncPartial, m.programming, m.lastSync, m.endpointChanges, m.serviceChanges,
		m.failures,
	}
}

// observe counts one write.
func (m *Metrics) observe(b *changeBatch, took time.Duration, full bool) {
	m.syncDuration.Observe(took.Seconds())
	if full {
		m.syncFull.Observe(took.Seconds())
	} else {
		m.syncPartial.Observe(took.Seconds())
	}
	now := time.Now()
	m.lastSync.Set(float64(now.UnixNano()) / float64(time.Second))
	for _, s := range b.services {
		m.endpointChanges.Add(float64(s.slices))
		if s.service {
			m.serviceChanges.Inc()
		}
		if !s.trigger.IsZero() && !full { // changes from before the start would distort it
			m.programming.Observe(now.Sub(s.trigger).Seconds())
		}
	}
}
