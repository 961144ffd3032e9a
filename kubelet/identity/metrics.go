// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/tls"
	"crypto/x509"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of a kubelet's certificates, with the names of Kubernetes' kubelet.
var (
	descClientTTL = prometheus.NewDesc("kubelet_certificate_manager_client_ttl_seconds",
		"[ALPHA] Seconds until the kubelet's client certificate expires. +INF: it has none.", nil, nil)
	descServerTTL = prometheus.NewDesc("kubelet_certificate_manager_server_ttl_seconds",
		"[ALPHA] Seconds until the kubelet's serving certificate expires. +INF: it has none.", nil, nil)
)

// Metrics are those of a kubelet's certificates.
type Metrics struct {
	client, server             func() *tls.Certificate // nil: there is none
	clientErrors, serverErrors prometheus.Counter
}

// NewMetrics returns the metrics of a kubelet that has a serving certificate and no certificate for the API server.
func NewMetrics(serving *tls.Config) *Metrics {
	return newMetrics(func() *tls.Certificate { return nil }, func() *tls.Certificate {
		switch {
		case serving == nil:
			return nil
		case serving.GetCertificate != nil:
			c, err := serving.GetCertificate(&tls.ClientHelloInfo{})
			if err != nil {
				return nil // there is none yet
			}
			return c
		case len(serving.Certificates) > 0:
			return &serving.Certificates[0]
		}
		return nil
	})
}

func newMetrics(client, server func() *tls.Certificate) *Metrics {
	errors := func(name string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Name: name,
			Help: "[ALPHA] Counter of certificate renewal errors.",
		})
	}
	return &Metrics{
		client:       client,
		server:       server,
		clientErrors: errors("kubelet_certificate_manager_client_expiration_renew_errors"),
		serverErrors: errors("kubelet_server_expiration_renew_errors"),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- descClientTTL
	ch <- descServerTTL
	m.clientErrors.Describe(ch)
	m.serverErrors.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descClientTTL, prometheus.GaugeValue, lifetime(m.client()))
	ch <- prometheus.MustNewConstMetric(descServerTTL, prometheus.GaugeValue, lifetime(m.server()))
	m.clientErrors.Collect(ch)
	m.serverErrors.Collect(ch)
}

// lifetime is how many seconds are left until a certificate expires.
func lifetime(c *tls.Certificate) float64 {
	if c == nil || len(c.Certificate) == 0 {
		return math.Inf(1)
	}
	leaf := c.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return math.Inf(1)
		}
	}
	return math.Trunc(time.Until(leaf.NotAfter).Seconds())
}
