// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"

	podkind "keelson/api/core/pod"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodePorts filters nodes where a host port of the pod is taken.
type NodePorts struct{}

// Plugin returns the descriptor.
func (p NodePorts) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "NodePorts",
		PreFilter: p.PreFilter,
		Events:    p.events(),
	}
}

var portTaken = framework.NewStatus("NodePorts", framework.Unschedulable,
	"node(s) didn't have free ports for the requested pod ports")

// PreFilter returns nil for pods without host ports.
func (NodePorts) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if len(pod.Ports) == 0 {
		return framework.NodeFilter{}, nil
	}
	return framework.NodeFilter{Filter: portsFilter(pod.Ports).Filter, NodeLocal: true, Explain: explainPorts}, nil
}

type portsFilter []podkind.HostPort

func (want portsFilter) Filter(n *state.NodeInfo) *framework.Status {
	if conflict(want, n.Ports) != nil {
		return portTaken
	}
	return nil
}

// conflict returns the first port in want that conflicts with one in taken.
func conflict(want, taken []podkind.HostPort) *podkind.HostPort {
	for i := range want {
		if slices.ContainsFunc(taken, want[i].Conflicts) {
			return &want[i]
		}
	}
	return nil
}

// explainPorts names the port and the pod that has it.
func explainPorts(
	pod *state.PodInfo, n *state.NodeInfo, _ *framework.Status,
) (short, hint string, distance float64) {
	for _, p := range n.Pods {
		if c := conflict(pod.Ports, p.Ports); c != nil {
			return fmt.Sprintf("host port %d/%s taken by %s", c.Port, c.Protocol, p.Key), "", 1
		}
	}
	return "", "", 1
}

// events names what may help: a new node, or a deleted pod with one of the ports.
func (NodePorts) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{Kinds: framework.NodeAdd | framework.UnscheduledPodUpdate}, {
		Kinds: framework.AssignedPodDelete,
		QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
			return conflict(pod.Ports, state.NewPodInfo(e.OldPod).Ports) != nil
		},
	}}
}
