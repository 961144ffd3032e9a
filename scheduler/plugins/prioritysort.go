// SPDX-License-Identifier: Apache-2.0

package plugins

import "keelson/scheduler/framework"

// PrioritySort tries pods by priority, then who has waited longer.
type PrioritySort struct{}

// Name is the plugin's.
func (PrioritySort) Name() string { return "PrioritySort" }

// Less reports whether a is tried before b.
func (PrioritySort) Less(a, b *framework.QueuedPod) bool {
	if a.Pod.Priority != b.Pod.Priority {
		return a.Pod.Priority > b.Pod.Priority
	}
	return a.Since.Before(b.Since)
}
