// SPDX-License-Identifier: Apache-2.0

package state

// Clone returns an independent cache for a trial. It has the same nodes, namespaces and pods, except the pods that
// without selects, and no nominations. Neither cache modifies what both share.
func (c *Cache) Clone(without func(*PodInfo) bool) *Cache {
	out := NewCache()
	c.mu.Lock()
	defer c.mu.Unlock()
	out.namespaces = c.namespaces
	for name, e := range c.nodes {
		info := e.info
		if !e.shared {
			info = info.clone()
		}
		out.nodes[name] = &nodeEntry{info: info, shared: true, pos: -1}
	}
	var gone []*placedPod
	for uid, p := range c.pods {
		own := *p
		out.pods[uid] = &own
		if without(p.info) {
			gone = append(gone, &own)
		}
	}
	for _, p := range gone {
		out.removePodLocked(p)
	}
	out.nodesChanged = true
	out.labelsChanged = true
	out.tooManyChanges = true
	return out
}
