// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/metrics"
)

// ClientMetrics are client-go's rest_client_* metrics for the requests of this process. There is one set, because
// client-go has one global registry.
var ClientMetrics = sync.OnceValue(func() []prometheus.Collector {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rest_client_requests_total",
		Help: "Number of HTTP requests, partitioned by status code, method, and host.",
	}, []string{"code", "method", "host"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "rest_client_request_duration_seconds",
		Help:    "Request latency in seconds. Broken down by verb, and host.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0},
	}, []string{"verb", "host"})
	metrics.Register(metrics.RegisterOpts{RequestLatency: clientLatency{took}, RequestResult: clientResult{requests}})
	return []prometheus.Collector{requests, took}
})

// ElectionMetrics are client-go's leader_election_* metrics. There is one set, created before the first election
// begins.
var ElectionMetrics = sync.OnceValue(func() []prometheus.Collector {
	m := electionMetric{
		leads: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "leader_election_master_status",
			Help: "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates " +
				"master. 'name' is the string used to identify the lease. Please make sure to group by name.",
		}, []string{"name"}),
		slow: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leader_election_slowpath_total",
			Help: "Total number of slow path exercised in renewing leader leases. 'name' is the string used to " +
				"identify the lease. Please make sure to group by name.",
		}, []string{"name"}),
	}
	leaderelection.SetProvider(m)
	return []prometheus.Collector{m.leads, m.slow}
})

type electionMetric struct {
	leads *prometheus.GaugeVec
	slow  *prometheus.CounterVec
}

// NewLeaderMetric returns m itself: all elections share the metrics.
func (m electionMetric) NewLeaderMetric() leaderelection.LeaderMetric { return m }

// On records that this instance is the leader.
func (m electionMetric) On(name string) { m.leads.WithLabelValues(name).Set(1) }

// Off records that it is not.
func (m electionMetric) Off(name string) { m.leads.WithLabelValues(name).Set(0) }

// SlowpathExercised counts a renewal that had to read the lease first.
func (m electionMetric) SlowpathExercised(name string) { m.slow.WithLabelValues(name).Inc() }

type clientLatency struct{ took *prometheus.HistogramVec }

// Observe records how long a request took.
func (l clientLatency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.took.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

type clientResult struct{ requests *prometheus.CounterVec }

// Increment counts a request.
func (r clientResult) Increment(_ context.Context, code, method, host string) {
	r.requests.WithLabelValues(code, method, host).Inc()
}
