// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/api/apiregistration"
)

var unavailableDesc = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)

// newUnavailableTotal counts how often an APIService became unavailable.
func newUnavailableTotal() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aggregator_unavailable_apiservice_total",
		Help: "Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
	}, []string{"name", "reason"})
}

// Describe implements prometheus.Collector.
func (s *Services) Describe(ch chan<- *prometheus.Desc) {
	ch <- unavailableDesc
	s.unavailableTotal.Describe(ch)
}

// Collect reports which APIServices are unavailable now.
func (s *Services) Collect(ch chan<- prometheus.Metric) {
	s.unavailableTotal.Collect(ch)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, svc := range s.known {
		unavailable := 0.0
		if c := apiregistration.Available(svc); svc.Spec.Service != nil && (c == nil || c.Status != v1.ConditionTrue) {
			unavailable = 1
		}
		ch <- prometheus.MustNewConstMetric(unavailableDesc, prometheus.GaugeValue, unavailable, name)
	}
}
