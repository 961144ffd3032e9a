// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"github.com/prometheus/client_golang/prometheus"

	"keelson/lib/connlimit"
)

// defaultConnections limits the open client connections.
const defaultConnections = 20000

// connectionMetrics reports the number of open connections.
type connectionMetrics struct{ l *connlimit.Listener }

var (
	connectionsDesc = prometheus.NewDesc("keelson_apiserver_connections",
		"Open connections of clients by how far they have come.", []string{"state"}, nil)
	maxConnDesc = prometheus.NewDesc("keelson_apiserver_connections_limit",
		"Connections of clients that may be open at once.", nil, nil)
	refusedConnDesc = prometheus.NewDesc("keelson_apiserver_connections_closed_total",
		"Connections of clients closed because there were too many, by reason.",
		[]string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (connectionMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- connectionsDesc
	ch <- maxConnDesc
	ch <- refusedConnDesc
}

// Collect implements prometheus.Collector.
func (m connectionMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.l.Stats()
	ch <- prometheus.MustNewConstMetric(maxConnDesc, prometheus.GaugeValue, float64(s.Max))
	for state, n := range s.Open {
		// an index
		ch <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(n),
			connlimit.State(state).String())
	}
	for reason, n := range s.Refused {
		// an index
		ch <- prometheus.MustNewConstMetric(refusedConnDesc, prometheus.CounterValue, float64(n),
			connlimit.Reason(reason).String())
	}
}
