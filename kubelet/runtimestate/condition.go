// SPDX-License-Identifier: Apache-2.0

package runtimestate

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Condition formats a condition of the runtime as Kubernetes' kubelet does.
func Condition(c *runtimeapi.RuntimeCondition) string {
	return fmt.Sprintf("%s=%t reason:%s message:%s", c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage())
}

// NetworkProblem returns why the network of the runtime is not ready, with the kubelet's message; empty: it is ready.
func NetworkProblem(st *runtimeapi.StatusResponse) string {
	for _, c := range st.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.NetworkReady && !c.GetStatus() {
			return "container runtime network not ready: " + Condition(c)
		}
	}
	return ""
}
