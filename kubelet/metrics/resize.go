// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// resizes are the metrics of pods whose resources change in place.
type resizes struct {
	requested  *prometheus.CounterVec
	took       *prometheus.HistogramVec
	infeasible *prometheus.CounterVec
	accepted   *prometheus.CounterVec
}

func (m *Metrics) addResizes() {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help}, labels)
	}
	m.resizes = resizes{
		requested: counter("container_requested_resizes_total",
			"[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same "+
				"container are counted separately.", "resource", "requirement", "operation"),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet",
			Name:      "pod_resize_duration_milliseconds",
			Help:      "[ALPHA] Duration in milliseconds to actuate a pod resize",
			Buckets:   prometheus.ExponentialBuckets(10, 2, 12),
		}, []string{"success"}),
		infeasible: counter("pod_infeasible_resizes_total", "[ALPHA] Number of infeasible resizes for pods.",
			"reason_detail"),
		accepted: counter("pod_deferred_accepted_resizes_total",
			"[ALPHA] Cumulative number of resizes that were accepted after being deferred.", "retry_trigger"),
	}
	m.kubelet.MustRegister(m.resizes.requested, m.resizes.took, m.resizes.infeasible, m.resizes.accepted)
}

// ResizeRequested counts how a container's requests or limits (requirement) are to change.
func (m *Metrics) ResizeRequested(requirement string, had, want corev1.ResourceList) {
	if m == nil {
		return
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		before, was := had[name]
		after, is := want[name]
		operation := ""
		switch {
		case !was && is:
			operation = "add"
		case was && !is:
			operation = "remove"
		case after.Cmp(before) > 0:
			operation = "increase"
		case after.Cmp(before) < 0:
			operation = "decrease"
		default:
			continue
		}
		m.resizes.requested.WithLabelValues(string(name), requirement, operation).Inc()
	}
}

// PodResized counts a change of a container's or a pod's cgroup that took so long, or failed.
func (m *Metrics) PodResized(took time.Duration, err error) {
	if m == nil {
		return
	}
	success := "true"
	if err != nil {
		success = "false"
	}
	m.resizes.took.WithLabelValues(success).Observe(float64(took.Milliseconds()))
}

// ResizeInfeasible counts a resize that the node can never do.
func (m *Metrics) ResizeInfeasible(why string) {
	if m != nil {
		m.resizes.infeasible.WithLabelValues(why).Inc()
	}
}

// ResizeAccepted counts a resize that had to wait, and what made the kubelet try it again.
func (m *Metrics) ResizeAccepted(trigger string) {
	if m != nil {
		m.resizes.accepted.WithLabelValues(trigger).Inc()
	}
}
