// SPDX-License-Identifier: Apache-2.0

package state

// Clone is a cache of its own with the same nodes and namespaces, and the pods but for those that without names; it has no
// nominations. It is there to try something on. What it shares with c neither changes.
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
		out.nodes[name] = &entry{info: info, shared: true, pos: -1}
	}
	var gone []*placed
	for uid, p := range c.pods {
		own := *p
		out.pods[uid] = &own
		if without(p.info) {
			gone = append(gone, &own)
		}
	}
	for _, p := range gone {
		out.displaceLocked(p)
	}
	out.nodesChanged, out.labelsChanged, out.tooManyChanges = true, true, true
	return out
}
