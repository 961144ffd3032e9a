// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeUnschedulable filters cordoned nodes (spec.unschedulable), unless the pod tolerates the taint
// node.kubernetes.io/unschedulable.
type NodeUnschedulable struct{}

// Plugin returns the descriptor.
func (p NodeUnschedulable) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "NodeUnschedulable",
		PreFilter: p.PreFilter,
		Events:    p.events(),
	}
}

var cordoned = framework.NewStatus("NodeUnschedulable", framework.Unresolvable, "node(s) were unschedulable")

var cordonTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// PreFilter returns nil for pods that tolerate cordoned nodes.
func (NodeUnschedulable) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if tolerates(pod.Pod.Spec.Tolerations, &cordonTaint) {
		return framework.NodeFilter{}, nil
	}
	return framework.NodeFilter{Filter: filterCordoned, NodeLocal: true, Explain: explainCordon}, nil
}

func filterCordoned(n *state.NodeInfo) *framework.Status {
	if n.Cordoned {
		return cordoned
	}
	return nil
}

// explainCordon suggests to uncordon the node.
func explainCordon(
	_ *state.PodInfo, n *state.NodeInfo, _ *framework.Status,
) (short, hint string, distance float64) {
	return "cordoned", "uncordon " + n.Name, 1.5
}

// events names what may help: a new or an uncordoned node.
func (NodeUnschedulable) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{
		Kinds: framework.NodeAdd | framework.NodeTaints,
		QueueingHintFn: func(_ *state.PodInfo, e *framework.Event) bool {
			return !e.NewNode.Spec.Unschedulable
		},
	}, {Kinds: framework.UnscheduledPodUpdate}}
}
