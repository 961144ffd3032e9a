// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Probes counts results of health checks as Kubernetes' service level indicators (/metrics/slis).
type Probes struct {
	http.Handler
	last  *prometheus.GaugeVec
	total *prometheus.CounterVec
}

// NewProbes returns empty counters.
func NewProbes() *Probes {
	probes := &Probes{
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck",
			Help: "[STABLE] This metric records the result of a single healthcheck.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total",
			Help: "[STABLE] This metric records the results of all healthcheck.",
		}, []string{"name", "status", "type"}),
	}
	all := prometheus.NewRegistry()
	all.MustRegister(probes.last, probes.total)
	probes.Handler = promhttp.HandlerFor(all, promhttp.HandlerOpts{ProcessStartTime: time.Now()})
	return probes
}

// observe counts a result of a check on the path typ (livez, readyz, healthz).
func (p *Probes) observe(typ, name string, healthy bool) {
	value := 0.0
	status := "error"
	if healthy {
		value = 1
		status = "success"
	}
	p.last.WithLabelValues(name, typ).Set(value)
	p.total.WithLabelValues(name, status, typ).Inc()
}
