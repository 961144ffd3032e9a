// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/apiserver/outbound"
)

// TestIssuersAreReachedThroughEgress: a call of an issuer of tokens is in the metrics of outgoing connections, and
// trusts the authorities that are given.
func TestIssuersAreReachedThroughEgress(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	egress := outbound.New(outbound.Config{})
	c := &http.Client{Transport: toIssuers(egress)(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})}
	defer c.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if got := requestsThrough(t, egress); got["token issuer"] != 1 {
		t.Errorf("requests in the metrics of outgoing connections: got %v, want one to a token issuer", got)
	}
}

// requestsThrough counts the requests in the metrics of outgoing connections, by whom they went to.
func requestsThrough(t *testing.T, egress *outbound.Egress) map[string]uint64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(egress.Collectors()...)
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]uint64{}
	for _, f := range all {
		if f.GetName() != "keelson_apiserver_outbound_request_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "to" {
					made[l.GetValue()] += m.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return made
}
