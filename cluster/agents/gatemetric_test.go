// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/api/gates"
)

// TestGateMetric: kubernetes_feature_enabled has each gate with its stage, and shows what was turned.
func TestGateMetric(t *testing.T) {
	values := func(on gates.On) map[string]float64 {
		t.Helper()
		r := prometheus.NewRegistry()
		r.MustRegister(GateMetric{On: on})
		families, err := r.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "kubernetes_feature_enabled" {
			t.Fatalf("%v, %v", families, err)
		}
		out := map[string]float64{}
		for _, m := range families[0].GetMetric() { // labels are in order
			out[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
		}
		return out
	}
	off := values(gates.On{})
	on := values(gates.On{GenericWorkload: true})
	for _, c := range []struct {
		of   map[string]float64
		gate string
		want float64
	}{
		{off, "ImageVolume ", 1},
		{off, "NodeSwap ", 0},
		{off, "GenericWorkload BETA", 0},
		{on, "GenericWorkload BETA", 1},
	} {
		if got, there := c.of[c.gate]; !there || got != c.want {
			t.Errorf("%s: %v, %v; want %v", c.gate, got, there, c.want)
		}
	}
}
