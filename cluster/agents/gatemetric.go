// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"github.com/prometheus/client_golang/prometheus"

	"keelson/api/gates"
)

var descGate = prometheus.NewDesc("kubernetes_feature_enabled",
	"[BETA] Whether a feature gate is on, by its name and its stage in the release.", []string{"name", "stage"}, nil)

// GateMetric is the metric kubernetes_feature_enabled. It is made when it is read: there are 250 gates.
type GateMetric struct{ On gates.On }

// Describe implements prometheus.Collector.
func (GateMetric) Describe(ch chan<- *prometheus.Desc) { ch <- descGate }

// Collect implements prometheus.Collector.
func (m GateMetric) Collect(ch chan<- prometheus.Metric) {
	for state := range m.On.States() {
		var enabled float64
		if state.Enabled {
			enabled = 1
		}
		ch <- prometheus.MustNewConstMetric(descGate, prometheus.GaugeValue, enabled, state.Name, state.Stage)
	}
}
