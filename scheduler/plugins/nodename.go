// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeName filters all nodes except the one of spec.nodeName.
type NodeName struct{}

// Plugin returns the descriptor.
func (p NodeName) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "NodeName",
		PreFilter: p.PreFilter,
		Events:    p.events(),
	}
}

var wrongName = framework.NewStatus("NodeName", framework.Unresolvable, "node(s) didn't match the requested node name")

// PreFilter returns nil for pods without spec.nodeName.
func (NodeName) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if pod.Pod.Spec.NodeName == "" {
		return framework.NodeFilter{}, nil
	}
	return framework.NodeFilter{Filter: nodeNameFilter(pod.Pod.Spec.NodeName).Filter, NodeLocal: true}, nil
}

type nodeNameFilter string

func (want nodeNameFilter) Filter(n *state.NodeInfo) *framework.Status {
	if n.Name != string(want) {
		return wrongName
	}
	return nil
}

// events names what may help: a new node of that name, no other event.
func (NodeName) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{
		Kinds: framework.NodeAdd,
		QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
			return e.NewNode.Name == pod.Pod.Spec.NodeName
		},
	}}
}
