// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeUnschedulable keeps pods off nodes with spec.unschedulable (cordoned), unless they tolerate the taint that says the same.
type NodeUnschedulable struct{}

// Name is the plugin's.
func (NodeUnschedulable) Name() string { return "NodeUnschedulable" }

var cordoned = framework.Refuse("NodeUnschedulable", framework.Unresolvable, "node(s) were unschedulable")

var cordonTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// PreFilter has nothing to say about pods that tolerate cordoned nodes.
func (NodeUnschedulable) PreFilter(_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if tolerates(pod.Pod.Spec.Tolerations, &cordonTaint) {
		return nil, nil
	}
	return notCordoned{}, nil
}

type notCordoned struct{}

func (notCordoned) Filter(n *state.NodeInfo) *framework.Status {
	if n.Cordoned {
		return cordoned
	}
	return nil
}

// Local: see framework.Local.
func (notCordoned) Local() {}

// Explain says what would open the node.
func (NodeUnschedulable) Explain(_ *state.PodInfo, n *state.NodeInfo, _ *framework.Status) (short, hint string, distance float64) {
	return "cordoned", "uncordon " + n.Name, 1.5
}

// EventsToRegister names what may help: a new node, or one that was uncordoned.
func (NodeUnschedulable) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{On: framework.NodeAdd | framework.NodeTaints, Worth: func(_ *state.PodInfo, e *framework.Event) bool {
		return !e.NewNode.Spec.Unschedulable
	}}, {On: framework.Self}}
}
