// SPDX-License-Identifier: Apache-2.0

package endpointslicemirroring

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/controllers/framework"
)

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct {
	added, updated, removed, skipped, duration prometheus.Histogram
	desired, slices, ideal                     prometheus.Gauge
	changes                                    *prometheus.CounterVec

	mu  sync.Mutex
	all map[framework.Key]counts
}

// counts are the wanted endpoints of an Endpoints, its number of slices, and the minimum possible number.
type counts struct{ desired, slices, ideal int }

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	const system = "endpoint_slice_mirroring_controller"
	histogram := func(name, help string, first float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: system,
			Name:      name,
			Help:      help,
			Buckets:   prometheus.ExponentialBuckets(first, 2, 15),
		})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Subsystem: system, Name: name, Help: help})
	}
	return &Metrics{
		added:   histogram("endpoints_added_per_sync", "Number of endpoints added on each Endpoints sync", 2),
		updated: histogram("endpoints_updated_per_sync", "Number of endpoints updated on each Endpoints sync", 2),
		removed: histogram("endpoints_removed_per_sync", "Number of endpoints removed on each Endpoints sync", 2),
		skipped: histogram("addresses_skipped_per_sync",
			"Number of addresses skipped on each Endpoints sync due to being invalid or exceeding "+
				"MaxEndpointsPerSubset", 2),
		duration: histogram("endpoints_sync_duration", "Duration of syncEndpoints() in seconds", 0.001),
		desired:  gauge("endpoints_desired", "Number of endpoints desired"),
		slices:   gauge("num_endpoint_slices", "Number of EndpointSlices"),
		ideal: gauge("desired_endpoint_slices",
			"Number of EndpointSlices that would exist with perfect endpoint allocation"),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: system,
			Name:      "changes",
			Help:      "Number of EndpointSlice changes",
		}, []string{"operation"}),
		all: map[framework.Key]counts{},
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.added, m.updated, m.removed, m.skipped, m.duration, m.desired, m.slices, m.ideal, m.changes,
	}
}

func (m *Metrics) observe(key framework.Key, p *changes) {
	m.added.Observe(float64(p.added))
	m.updated.Observe(float64(p.updated))
	m.removed.Observe(float64(p.removedAddress))
	m.skipped.Observe(float64(p.skipped))
	m.count(key, p.desired, p.slices, p.slices)
}

// count replaces the counts of key.
func (m *Metrics) count(key framework.Key, desired, slices, ideal int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.all[key]
	now := counts{desired, slices, ideal}
	m.desired.Add(float64(now.desired - was.desired))
	m.slices.Add(float64(now.slices - was.slices))
	m.ideal.Add(float64(now.ideal - was.ideal))
	if m.all[key] = now; now == (counts{}) {
		delete(m.all, key)
	}
}
