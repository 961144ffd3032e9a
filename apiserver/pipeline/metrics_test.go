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
	m := NewMetrics()
	for labels, vecs := range map[int][]*prometheus.HistogramVec{
		8: {m.duration},
		7: {m.sliDuration, m.sizes},
		3: {m.waited, m.bytes},
		1: {m.auths.attemptsTook, m.auths.authorizedTook},
	} {
		for _, v := range vecs {
			v.WithLabelValues(make([]string, labels)...).Observe(0.012)
		}
	}
	m.auths.certificates.Observe(3600)
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			h := metric.GetHistogram()
			if h == nil {
				continue
			}
			seen[f.GetName()] = true
			if h.GetSchema() == 0 || len(h.GetPositiveSpan()) == 0 {
				t.Errorf("%s is no native histogram: schema %d, %d spans", f.GetName(), h.GetSchema(),
					len(h.GetPositiveSpan()))
			}
			if len(h.GetBucket()) == 0 {
				t.Errorf("%s has no classic buckets", f.GetName())
			}
		}
	}
	if len(seen) != 8 {
		t.Errorf("histograms with a value: got %q, want 8", slices.Sorted(maps.Keys(seen)))
	}
}
