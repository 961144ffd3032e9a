// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// plugin is a driver, and whether its volumes are counted as desired or as attached.
type plugin struct {
	driver   string
	attached bool
}

// volumeCounts has the numbers of desired and attached volumes of a node.
type volumeCounts map[plugin]int

func countVolumes(v nodeView) volumeCounts {
	out := volumeCounts{}
	if v.node == nil || isManaged(v.node) {
		for _, w := range v.wants {
			out[plugin{w.volume.driver, false}]++
		}
		for _, a := range v.have {
			out[plugin{a.volume.driver, true}]++
		}
	}
	return out
}

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct {
	forced  *prometheus.CounterVec
	desc    *prometheus.Desc
	mu      sync.Mutex
	running map[*Controller]struct{}
}

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	return &Metrics{
		forced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "attach_detach_controller",
			Name:      "attachdetach_controller_forced_detaches",
			Help:      "Number of times the A/D Controller performed a forced detach",
		}, []string{"reason"}),
		desc: prometheus.NewDesc("attachdetach_controller_total_volumes", "Number of volumes in A/D Controller",
			[]string{"plugin_name", "state"}, nil),
		running: map[*Controller]struct{}{},
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.forced, m} }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc }

// Collect sums up the volumes of all running controllers.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	sum := volumeCounts{}
	m.mu.Lock()
	for c := range m.running {
		c.mu.Lock()
		for _, k := range c.counts {
			for p, n := range k {
				sum[p] += n
			}
		}
		c.mu.Unlock()
	}
	m.mu.Unlock()
	for p, n := range sum {
		state := "desired_state_of_world"
		if p.attached {
			state = "actual_state_of_world"
		}
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(n), "kubernetes.io/csi:"+p.driver,
			state)
	}
}

// during includes c in the metrics until the returned function is called.
func (m *Metrics) during(c *Controller) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running[c] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.running, c)
	}
}
