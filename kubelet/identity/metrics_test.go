// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/tls"
	"crypto/x509"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestMetrics: the metrics say how long the certificates are good, and count the renewals that failed.
func TestMetrics(t *testing.T) {
	serving := &tls.Certificate{
		Certificate: [][]byte{{1}},
		Leaf:        &x509.Certificate{NotAfter: time.Now().Add(time.Hour + 30*time.Second)},
	}
	metrics := NewMetrics(&tls.Config{Certificates: []tls.Certificate{*serving}})
	metrics.serverErrors.Inc()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	if ttl := got["kubelet_certificate_manager_server_ttl_seconds"]; ttl < 3600 || ttl > 3630 {
		t.Errorf("the serving certificate is good for %v s, want an hour", ttl)
	}
	if ttl := got["kubelet_certificate_manager_client_ttl_seconds"]; !math.IsInf(ttl, 1) {
		t.Errorf("without a client certificate: %v s, want +Inf", ttl)
	}
	if n := got["kubelet_server_expiration_renew_errors"]; n != 1 {
		t.Errorf("%v renewals of the serving certificate failed, want 1", n)
	}
	if n, there := got["kubelet_certificate_manager_client_expiration_renew_errors"]; !there || n != 0 {
		t.Errorf("renewals of the client certificate: %v, %v", n, there)
	}
}
