// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of kube-proxy, with its names.
var (
	syncBuckets  = prometheus.ExponentialBuckets(0.001, 2, 15)
	syncDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kubeproxy_sync_proxy_rules_duration_seconds",
		Help:    "Time of a write of the rules of services.",
		Buckets: syncBuckets,
	})
	syncFull = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kubeproxy_sync_full_proxy_rules_duration_seconds",
		Help:    "Time of a write of all rules of services.",
		Buckets: syncBuckets,
	})
	syncPartial = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
		Help:    "Time of a write of changed rules of services.",
		Buckets: syncBuckets,
	})
	programming = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kubeproxy_network_programming_duration_seconds",
		Help:    "Time from a change of a pod or service to the rules.",
		Buckets: append([]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25}, prometheus.ExponentialBuckets(0.5, 2, 10)...),
	})
	lastSync = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
		Help: "When the rules of services were written last.",
	})
	endpointChanges = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubeproxy_sync_proxy_rules_endpoint_changes_total",
		Help: "Changes of endpoint slices.",
	})
	serviceChanges = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubeproxy_sync_proxy_rules_service_changes_total",
		Help: "Changes of services.",
	})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
		Help: "Writes of rules that failed.",
	})
)

// Collectors are the proxy's metrics.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		syncDuration, syncFull, syncPartial, programming, lastSync, endpointChanges, serviceChanges, failures,
	}
}

// observe counts one write.
func observe(b *changeBatch, took time.Duration, full bool) {
	syncDuration.Observe(took.Seconds())
	if full {
		syncFull.Observe(took.Seconds())
	} else {
		syncPartial.Observe(took.Seconds())
	}
	now := time.Now()
	lastSync.Set(float64(now.UnixNano()) / float64(time.Second))
	for _, s := range b.services {
		endpointChanges.Add(float64(s.slices))
		if s.service {
			serviceChanges.Inc()
		}
		if !s.trigger.IsZero() && !full { // changes from before the start would distort it
			programming.Observe(now.Sub(s.trigger).Seconds())
		}
	}
}
