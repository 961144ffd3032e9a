// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"cmp"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
)

// setMetrics are Kubernetes' metrics of this controller.
type setMetrics struct{ most, missing *prometheus.GaugeVec }

// metrics is one set for the process, as in Kubernetes.
var metrics = sync.OnceValue(func() *setMetrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "statefulset_controller", Name: name, Help: help},
			[]string{"statefulset_namespace", "statefulset_name", "pod_management_policy"})
	}
	return &setMetrics{
		most: gauge("statefulset_max_unavailable",
			"Maximum number of unavailable pods allowed during StatefulSet rolling updates"),
		missing: gauge("statefulset_unavailable_replicas", "Current number of unavailable pods in StatefulSet"),
	}
})

// Collectors are the metrics of all StatefulSets in this process.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{metrics().most, metrics().missing}
}

// set updates the metrics of the set in s.
func (g *setMetrics) set(s snapshot) {
	policy := string(cmp.Or(s.set.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement))
	_, most := limits(s.set)
	g.most.WithLabelValues(s.set.Namespace, s.set.Name, policy).Set(float64(most))
	down := replicas(s.set)
	for _, p := range s.pods {
		if _, n := parseOrdinal(p.Name); inRange(s.set, n) && !unavailable(s, p) {
			down--
		}
	}
	g.missing.WithLabelValues(s.set.Namespace, s.set.Name, policy).Set(float64(down))
}

// forget removes a deleted set.
func (g *setMetrics) forget(namespace, name string) {
	labels := prometheus.Labels{"statefulset_namespace": namespace, "statefulset_name": name}
	g.most.DeletePartialMatch(labels)
	g.missing.DeletePartialMatch(labels)
}
