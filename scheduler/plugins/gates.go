// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// SchedulingGates keeps pods with scheduling gates out of the active queue.
type SchedulingGates struct{}

// Name returns the plugin's name.
func (SchedulingGates) Name() string { return "SchedulingGates" }

// PreEnqueue refuses a pod that has scheduling gates.
func (p SchedulingGates) PreEnqueue(pod *state.PodInfo) *framework.Status {
	gates := pod.Pod.Spec.SchedulingGates
	if len(gates) == 0 {
		return nil
	}
	names := make([]string, len(gates))
	for i := range gates {
		names[i] = gates[i].Name
	}
	return framework.NewStatus(p.Name(), framework.Unresolvable, fmt.Sprintf("waiting for scheduling gates: %v", names))
}
