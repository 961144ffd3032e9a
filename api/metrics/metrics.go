// SPDX-License-Identifier: Apache-2.0

// Package metrics describes NodeMetrics and PodMetrics of metrics.k8s.io: what nodes, and the containers of pods, use
// of cpu and memory. They are computed as v1 when somebody asks and never stored; v1beta1 (beta.go) has the same
// fields. It also knows the annotations that say what fake nodes and their pods pretend to use.
package metrics

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"

	"keelson/api/kind"
)

// NodeMetrics describes metrics.k8s.io/v1 NodeMetrics, whose resource is called nodes.
func NodeMetrics() *kind.Kind {
	return kind.Spec[*metricsv1.NodeMetrics]{
		Names:   nodeNames("v1"),
		New:     func() *metricsv1.NodeMetrics { return &metricsv1.NodeMetrics{} },
		NewList: func() runtime.Object { return &metricsv1.NodeMetricsList{} },
		Columns: columns,
		Row:     nodeRow,
	}.Erase()
}

// PodMetrics describes metrics.k8s.io/v1 PodMetrics, whose resource is called pods.
func PodMetrics() *kind.Kind {
	return kind.Spec[*metricsv1.PodMetrics]{
		Names:   podNames("v1"),
		New:     func() *metricsv1.PodMetrics { return &metricsv1.PodMetrics{} },
		NewList: func() runtime.Object { return &metricsv1.PodMetricsList{} },
		Columns: columns,
		Row:     podRow,
	}.Erase()
}

func nodeNames(version string) kind.Names {
	return kind.Names{
		Group:    metricsv1.GroupName,
		Version:  version,
		Kind:     "NodeMetrics",
		Resource: "nodes",
		Singular: "node",
	}
}

func podNames(version string) kind.Names {
	return kind.Names{
		Group:      metricsv1.GroupName,
		Version:    version,
		Kind:       "PodMetrics",
		Resource:   "pods",
		Singular:   "pod",
		Namespaced: true,
	}
}

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
	{Name: "cpu", Type: "string", Format: "quantity"},
	{Name: "memory", Type: "string", Format: "quantity"},
	{Name: "Window", Type: "string", Format: "duration"},
}

func nodeRow(m *metricsv1.NodeMetrics) []any { return row(m.Name, m.Usage, m.Window) }

func podRow(m *metricsv1.PodMetrics) []any {
	sum := corev1.ResourceList{}
	for i := range m.Containers {
		for name, q := range m.Containers[i].Usage {
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
	return row(m.Name, sum, m.Window)
}

func row(name string, usage corev1.ResourceList, window metav1.Duration) []any {
	return []any{name, text(usage, corev1.ResourceCPU), text(usage, corev1.ResourceMemory), window.Duration.String()}
}

func text(usage corev1.ResourceList, name corev1.ResourceName) string {
	q := usage[name]
	return q.String()
}

// Usage is an amount of cpu, in billionths of a core, and of memory, in bytes, as the API writes it.
func Usage(nanocores, bytes uint64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(min(nanocores, 1<<62)), resource.Nano), // bounded
		corev1.ResourceMemory: *resource.NewQuantity(int64(min(bytes, 1<<62)), resource.BinarySI),       // bounded
	}
}
