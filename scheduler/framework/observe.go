// SPDX-License-Identifier: Apache-2.0

package framework

import "time"

// Observe is called with the duration of a plugin at an extension point ("Filter": for one node) and with the name of
// its Status.
type Observe func(plugin, point, status string, took time.Duration)

// StatusName returns kube-scheduler's name for the outcome of a plugin.
func StatusName(st *Status) string {
	switch {
	case st == nil:
		return "Success"
	case st.Code == Unschedulable:
		return "Unschedulable"
	case st.Code == Unresolvable:
		return "UnschedulableAndUnresolvable"
	}
	return "Error"
}
