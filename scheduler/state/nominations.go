// SPDX-License-Identifier: Apache-2.0

package state

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// nominations is the nominator: the pods for which preemption is making room, each with its node
// (status.nominatedNodeName).
type nominations struct {
	at map[types.UID]string
	on map[string][]*PodInfo // by node; a list is replaced, never modified
	// changed are the pods whose nominations changed since the last Refresh. tooMany: the list was dropped, Refresh
	// copies all.
	changed []types.UID
	tooMany bool
}

// Nominate records the node on which preemption makes room for a pod. It replaces an earlier nomination.
func (c *Cache) Nominate(p *PodInfo, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unnominateLocked(p.Pod.UID)
	n := &c.nominated
	n.at[p.Pod.UID] = node
	n.on[node] = append(slices.Clip(n.on[node]), p)
	c.nominationChangedLocked(p.Pod.UID, node)
}

// Unnominate removes a pod's nomination and returns its node; empty: there was none.
func (c *Cache) Unnominate(uid types.UID) (node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unnominateLocked(uid)
}

func (c *Cache) unnominateLocked(uid types.UID) string {
	n := &c.nominated
	node, ok := n.at[uid]
	if !ok {
		return ""
	}
	delete(n.at, uid)
	rest := slices.DeleteFunc(slices.Clone(n.on[node]), func(p *PodInfo) bool { return p.Pod.UID == uid })
	if n.on[node] = rest; len(rest) == 0 {
		delete(n.on, node)
	}
	c.nominationChangedLocked(uid, node)
	return node
}

func (c *Cache) nominationChangedLocked(uid types.UID, node string) {
	// A standby scheduler never refreshes, so the log is bounded.
	if n := &c.nominated; len(n.changed) > 1024+len(n.at) {
		n.tooMany = true
		n.changed = nil
	} else if !n.tooMany {
		n.changed = append(n.changed, uid)
	}
	if e, ok := c.nodes[node]; ok {
		e.markDirtyLocked(c)
	}
}

// Nominated returns the node to which a pod is nominated; empty: none.
func (c *Cache) Nominated(uid types.UID) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nominated.at[uid]
}

// EachNominated calls f for every nominated pod.
func (c *Cache) EachNominated(f func(p *PodInfo, node string)) {
	c.mu.Lock()
	on := maps.Clone(c.nominated.on)
	c.mu.Unlock()
	for node, pods := range on {
		for _, p := range pods {
			f(p, node)
		}
	}
}

// NodeView is a node at one moment with the pods nominated to it. QueueingHints check it for waiting pods.
type NodeView struct {
	Node      *NodeInfo
	Nominated []*PodInfo
}

// NodeView returns a node without its tentative pods (AssumeTentatively); nil: there is no such node.
func (c *Cache) NodeView(node string) *NodeView {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.nodes[node]
	if !ok || e.info.Node == nil {
		return nil
	}
	e.shared = true
	view := &NodeView{Node: e.info, Nominated: c.nominated.on[node]}
	var tentative []*PodInfo
	for uid := range c.tentative {
		if p, ok := c.pods[uid]; ok && p.node == node {
			tentative = append(tentative, p.info)
		}
	}
	if len(tentative) > 0 {
		view.Node = view.Node.With(nil, tentative)
	}
	return view
}

// NominatedAt returns the pods nominated to the node at a place.
func (s *Snapshot) NominatedAt(place int) []*PodInfo {
	if len(s.nominatedNodes) == 0 {
		return nil
	}
	return s.nominatedAt[place]
}

// NominatedTo returns the pods nominated to the node of that name.
func (s *Snapshot) NominatedTo(node string) []*PodInfo {
	if place := s.Place(node); place >= 0 {
		return s.NominatedAt(int(place))
	}
	return nil
}

// AnyNominated reports whether any pod is nominated.
func (s *Snapshot) AnyNominated() bool { return len(s.nominatedNodes) > 0 }

// NominatedPlace returns the place of the node to which a pod is nominated; -1: there is none.
func (s *Snapshot) NominatedPlace(uid types.UID) int {
	if node, ok := s.nominatedNodes[uid]; ok {
		return int(s.Place(node))
	}
	return -1
}

// refreshNominationsLocked updates Snapshot.nominatedNodes. Refresh updates nominatedAt, since Nominate marks the node
// as dirty.
func (c *Cache) refreshNominationsLocked(s *Snapshot) {
	nominations := &c.nominated
	if nominations.tooMany {
		s.nominatedNodes = maps.Clone(nominations.at)
		nominations.tooMany = false
	}
	for _, uid := range nominations.changed {
		if node, ok := nominations.at[uid]; ok {
			s.nominatedNodes[uid] = node
		} else {
			delete(s.nominatedNodes, uid)
		}
	}
	nominations.changed = nominations.changed[:0]
}
