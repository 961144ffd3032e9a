// SPDX-License-Identifier: Apache-2.0

package plugins

import "keelson/scheduler/framework"

// PrioritySort orders the active queue by priority, then by the time since when the pods are in the queue.
type PrioritySort struct{}

// Plugin returns the descriptor.
func (p PrioritySort) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "PrioritySort",
		QueueSort: p.Less,
	}
}

// Less reports whether a is tried before b.
func (PrioritySort) Less(a, b *framework.QueuedPod) bool {
	if a.Pod.Priority != b.Pod.Priority {
		return a.Pod.Priority > b.Pod.Priority
	}
	return a.Since.Before(b.Since)
}
