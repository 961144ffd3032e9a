// SPDX-License-Identifier: Apache-2.0

package queue

// gatedItems are the gated pods whose PreEnqueue plugin registered events. Queue.mu guards them.
type gatedItems map[*Item]struct{}

// gates runs PreEnqueue and reports whether a plugin gates the pod. The pod is one of g if that plugin registered
// events.
func (g gatedItems) gates(it *Item) bool {
	it.gatedBy = ""
	delete(g, it)
	for _, gate := range it.rules.Gates {
		if gate.PreEnqueue(it.Pod) == nil {
			continue
		}
		it.gatedBy = gate.Name
		if _, ok := it.rules.Hints[it.gatedBy]; ok {
			g[it] = struct{}{}
		}
		return true
	}
	return false
}
