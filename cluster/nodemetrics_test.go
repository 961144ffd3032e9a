// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// counted are the sums of the metrics of a cluster's roles, by name: counters, gauges, and how often something was
// measured.
func counted(t *testing.T, of []prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(of...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sums[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sums
}

// TestMetricsBelongToOneCluster: what the DNS server of one cluster counts, another cluster in the process does not
// show. package clustertest has the same test of controllers and scheduler.
func TestMetricsBelongToOneCluster(t *testing.T) {
	one := newRoleMetrics()
	other := newRoleMetrics()
	one.dns.Dropped("rate")
	if got := counted(t, one.collectors())["keelson_dns_dropped_total"]; got != 1 {
		t.Errorf("the cluster counts %v dropped requests, want 1", got)
	}
	if got := counted(t, other.collectors())["keelson_dns_dropped_total"]; got != 0 {
		t.Errorf("another cluster counts %v dropped requests, want 0", got)
	}
}
