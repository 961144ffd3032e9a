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

// volumeMetrics are Kubernetes' metrics for all attach/detach controllers in the process.
type volumeMetrics struct {
	forced  *prometheus.CounterVec
	desc    *prometheus.Desc
	mu      sync.Mutex
	running map[*Controller]struct{}
}

var totals = sync.OnceValue(func() *volumeMetrics {
	return &volumeMetrics{
		forced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "attach_detach_controller",
			Name:      "attachdetach_controller_forced_detaches",
			Help:      "Number of times the A/D Controller performed a forced detach",
		}, []string{"reason"}),
		desc: prometheus.NewDesc("attachdetach_controller_total_volumes", "Number of volumes in A/D Controller",
			[]string{"plugin_name", "state"}, nil),
		running: map[*Controller]struct{}{},
	}
})

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{totals().forced, totals()} }

// Describe implements prometheus.Collector.
func (t *volumeMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- t.desc }

// Collect sums up the volumes of all running controllers.
func (t *volumeMetrics) Collect(ch chan<- prometheus.Metric) {
	sum := volumeCounts{}
	t.mu.Lock()
	for c := range t.running {
		c.mu.Lock()
		for _, k := range c.counts {
			for p, n := range k {
				sum[p] += n
			}
		}
		c.mu.Unlock()
	}
	t.mu.Unlock()
	for p, n := range sum {
		state := "desired_state_of_world"
		if p.attached {
			state = "actual_state_of_world"
		}
		ch <- prometheus.MustNewConstMetric(t.desc, prometheus.GaugeValue, float64(n), "kubernetes.io/csi:"+p.driver,
			state)
	}
}

// during includes c in the metrics until the returned function is called.
func (t *volumeMetrics) during(c *Controller) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running[c] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.running, c)
	}
}
