// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeName keeps a pod to the node its spec names.
type NodeName struct{}

// Name is the plugin's.
func (NodeName) Name() string { return "NodeName" }

var wrongName = framework.Refuse("NodeName", framework.Unresolvable, "node(s) didn't match the requested node name")

// PreFilter has something to say only about pods that name a node.
func (NodeName) PreFilter(_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if pod.Pod.Spec.NodeName == "" {
		return nil, nil
	}
	return nodeName(pod.Pod.Spec.NodeName), nil
}

type nodeName string

func (want nodeName) Filter(n *state.NodeInfo) *framework.Status {
	if n.Name != string(want) {
		return wrongName
	}
	return nil
}

// Local: see framework.Local.
func (nodeName) Local() {}

// EventsToRegister names what may help: only a new node can have the name.
func (NodeName) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{On: framework.NodeAdd, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
		return e.NewNode.Name == pod.Pod.Spec.NodeName
	}}}
}
