// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Condition is a condition of the runtime in the kubelet's words.
func Condition(c *runtimeapi.RuntimeCondition) string {
	return fmt.Sprintf("%s=%t reason:%s message:%s", c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage())
}

// NetworkProblem says why the runtime can connect no pod, as the kubelet words it; empty: it can.
func NetworkProblem(st *runtimeapi.StatusResponse) string {
	for _, c := range st.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.NetworkReady && !c.GetStatus() {
			return "container runtime network not ready: " + Condition(c)
		}
	}
	return ""
}
