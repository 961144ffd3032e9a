// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/endpointslice/metrics"
)

// Collectors are the metrics of k8s.io/endpointslice in the process.
func Collectors() []prometheus.Collector {
	metrics.RegisterMetrics() // this creates them
	return []prometheus.Collector{
		metrics.EndpointsAddedPerSync.HistogramVec, metrics.EndpointsRemovedPerSync.HistogramVec,
		metrics.EndpointsDesired.GaugeVec,
		metrics.NumEndpointSlices.GaugeVec, metrics.DesiredEndpointSlices.GaugeVec,
		metrics.EndpointSliceChanges.CounterVec,
		metrics.EndpointSlicesChangedPerSync.HistogramVec, metrics.EndpointSliceSyncs.CounterVec,
		metrics.ServicesCountByTrafficDistribution.GaugeVec,
	}
}
