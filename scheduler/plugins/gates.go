// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// SchedulingGates keeps pods with scheduling gates out of the queue.
type SchedulingGates struct{}

// Name is the plugin's.
func (SchedulingGates) Name() string { return "SchedulingGates" }

// PreEnqueue refuses a pod that has a gate left.
func (p SchedulingGates) PreEnqueue(pod *state.PodInfo) *framework.Status {
	gates := pod.Pod.Spec.SchedulingGates
	if len(gates) == 0 {
		return nil
	}
	names := make([]string, len(gates))
	for i := range gates {
		names[i] = gates[i].Name
	}
	return framework.Refuse(p.Name(), framework.Unresolvable, fmt.Sprintf("waiting for scheduling gates: %v", names))
}
