// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestMetricsBelongToOneCluster: what a DNS server of one cluster counts, another cluster in the process does not show.
func TestMetricsBelongToOneCluster(t *testing.T) {
	count := func(m roleMetrics) float64 {
		t.Helper()
		registry := prometheus.NewRegistry()
		registry.MustRegister(m.collectors()...)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, f := range families {
			if f.GetName() == "keelson_dns_dropped_total" {
				for _, m := range f.GetMetric() {
					sum += m.GetCounter().GetValue()
				}
			}
		}
		return sum
	}
	one := newRoleMetrics()
	other := newRoleMetrics()
	one.dns.Dropped("rate")
	if got := count(one); got != 1 {
		t.Errorf("the cluster counts %v dropped requests, want 1", got)
	}
	if got := count(other); got != 0 {
		t.Errorf("another cluster counts %v dropped requests, want 0", got)
	}
}
