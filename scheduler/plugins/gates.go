// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// SchedulingGates keeps pods with scheduling gates out of the active queue.
type SchedulingGates struct{}

const gatesName = "SchedulingGates"

// Plugin returns the descriptor.
func (p SchedulingGates) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:       gatesName,
		PreEnqueue: p.PreEnqueue,
	}
}

// PreEnqueue refuses a pod that has scheduling gates.
func (SchedulingGates) PreEnqueue(pod *state.PodInfo) *framework.Status {
	gates := pod.Pod.Spec.SchedulingGates
	if len(gates) == 0 {
		return nil
	}
	names := make([]string, len(gates))
	for i := range gates {
		names[i] = gates[i].Name
	}
	return framework.NewStatus(gatesName, framework.Unresolvable,
		fmt.Sprintf("waiting for scheduling gates: %v", names))
}
