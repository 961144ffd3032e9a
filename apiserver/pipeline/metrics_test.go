// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"maps"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestHistogramsAreNativeToo: every histogram of requests is exported with its classic buckets and as a native
// histogram.
func TestHistogramsAreNativeToo(t *testing.T) {
	metrics := NewMetrics()
	for labels, vecs := range map[int][]*prometheus.HistogramVec{
		8: {metrics.duration},
		7: {metrics.sliDuration, metrics.sizes},
		3: {metrics.waited, metrics.bytes},
		1: {metrics.auths.attemptsTook, metrics.auths.authorizedTook},
	} {
		for _, v := range vecs {
			v.WithLabelValues(make([]string, labels)...).Observe(0.012)
		}
	}
	metrics.auths.certificates.Observe(3600)
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, metricFamily := range families {
		for _, metric := range metricFamily.GetMetric() {
			h := metric.GetHistogram()
			if h == nil {
				continue
			}
			seen[metricFamily.GetName()] = true
			if h.GetSchema() == 0 || len(h.GetPositiveSpan()) == 0 {
				t.Errorf("%s is no native histogram: schema %d, %d spans", metricFamily.GetName(), h.GetSchema(),
					len(h.GetPositiveSpan()))
			}
			if len(h.GetBucket()) == 0 {
				t.Errorf("%s has no classic buckets", metricFamily.GetName())
			}
		}
	}
	if len(seen) != 8 {
		t.Errorf("histograms with a value: got %q, want 8", slices.Sorted(maps.Keys(seen)))
	}
}
