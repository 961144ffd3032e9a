// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"k8s.io/apimachinery/pkg/runtime"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"keelson/api/kind"
)

// NodeMetricsV1beta1 describes metrics.k8s.io/v1beta1 NodeMetrics.
func NodeMetricsV1beta1() *kind.Kind {
	return kind.Spec[*metricsv1beta1.NodeMetrics]{
		Names:   nodeNames("v1beta1"),
		New:     func() *metricsv1beta1.NodeMetrics { return &metricsv1beta1.NodeMetrics{} },
		NewList: func() runtime.Object { return &metricsv1beta1.NodeMetricsList{} },
		Columns: columns,
		Row:     func(m *metricsv1beta1.NodeMetrics) []any { return nodeRow(fromBetaNode(m)) },
	}.Erase()
}

// PodMetricsV1beta1 describes metrics.k8s.io/v1beta1 PodMetrics.
func PodMetricsV1beta1() *kind.Kind {
	return kind.Spec[*metricsv1beta1.PodMetrics]{
		Names:   podNames("v1beta1"),
		New:     func() *metricsv1beta1.PodMetrics { return &metricsv1beta1.PodMetrics{} },
		NewList: func() runtime.Object { return &metricsv1beta1.PodMetricsList{} },
		Columns: columns,
		Row:     func(m *metricsv1beta1.PodMetrics) []any { return podRow(fromBetaPod(m)) },
	}.Erase()
}

// ToV1beta1 returns v1 metrics as v1beta1, and any other object as it is. The result shares the amounts.
func ToV1beta1(obj kind.Object) kind.Object {
	switch m := obj.(type) {
	case *metricsv1.NodeMetrics:
		return &metricsv1beta1.NodeMetrics{
			ObjectMeta: m.ObjectMeta,
			Timestamp:  m.Timestamp,
			Window:     m.Window,
			Usage:      m.Usage,
		}
	case *metricsv1.PodMetrics:
		out := &metricsv1beta1.PodMetrics{
			ObjectMeta: m.ObjectMeta,
			Timestamp:  m.Timestamp,
			Window:     m.Window,
		}
		for _, c := range m.Containers {
			out.Containers = append(out.Containers, metricsv1beta1.ContainerMetrics(c))
		}
		return out
	}
	return obj
}

// ToV1 returns v1beta1 metrics as v1, and any other object as it is. The result shares the amounts.
func ToV1(obj kind.Object) kind.Object {
	switch m := obj.(type) {
	case *metricsv1beta1.NodeMetrics:
		return fromBetaNode(m)
	case *metricsv1beta1.PodMetrics:
		return fromBetaPod(m)
	}
	return obj
}

func fromBetaNode(m *metricsv1beta1.NodeMetrics) *metricsv1.NodeMetrics {
	return &metricsv1.NodeMetrics{
		ObjectMeta: m.ObjectMeta,
		Timestamp:  m.Timestamp,
		Window:     m.Window,
		Usage:      m.Usage,
	}
}

func fromBetaPod(m *metricsv1beta1.PodMetrics) *metricsv1.PodMetrics {
	out := &metricsv1.PodMetrics{
		ObjectMeta: m.ObjectMeta,
		Timestamp:  m.Timestamp,
		Window:     m.Window,
	}
	for _, c := range m.Containers {
		out.Containers = append(out.Containers, metricsv1.ContainerMetrics(c))
	}
	return out
}
