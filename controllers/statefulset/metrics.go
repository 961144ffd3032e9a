// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
)

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct{ most, missing *prometheus.GaugeVec }

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "statefulset_controller", Name: name, Help: help},
			[]string{"statefulset_namespace", "statefulset_name", "pod_management_policy"})
	}
	return &Metrics{
		most: gauge("statefulset_max_unavailable",
			"Maximum number of unavailable pods allowed during StatefulSet rolling updates"),
		missing: gauge("statefulset_unavailable_replicas", "Current number of unavailable pods in StatefulSet"),
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.most, m.missing}
}

// set updates the metrics of the set in s.
func (m *Metrics) set(s snapshot) {
	policy := string(cmp.Or(s.set.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement))
	_, most := limits(s.set)
	m.most.WithLabelValues(s.set.Namespace, s.set.Name, policy).Set(float64(most))
	down := replicas(s.set)
	for _, p := range s.pods {
		if _, n := parseOrdinal(p.Name); inRange(s.set, n) && !unavailable(s, p) {
			down--
		}
	}
	m.missing.WithLabelValues(s.set.Namespace, s.set.Name, policy).Set(float64(down))
}

// forget removes a deleted set.
func (m *Metrics) forget(namespace, name string) {
	labels := prometheus.Labels{"statefulset_namespace": namespace, "statefulset_name": name}
	m.most.DeletePartialMatch(labels)
	m.missing.DeletePartialMatch(labels)
}
