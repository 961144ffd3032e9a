// SPDX-License-Identifier: Apache-2.0

package state

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// nominations are the nominated pods: those for which preemption is making room, each with its node (status.nominatedNodeName).
type nominations struct {
	at map[types.UID]string
	on map[string][]*PodInfo // by node; a list is replaced, never modified
	// changed are the pods whose nominations the snapshot does not know yet; tooMany: it has to learn all anew.
	changed []types.UID
	tooMany bool
}

// Nominate notes that room is being made for a pod on a node, and nowhere else.
func (c *Cache) Nominate(p *PodInfo, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unnominateLocked(p.Pod.UID)
	n := &c.nominated
	n.at[p.Pod.UID] = node
	n.on[node] = append(slices.Clip(n.on[node]), p)
	c.nominationChangedLocked(p.Pod.UID, node)
}

// Unnominate takes a pod's nomination back and returns the node; empty: there was none.
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
		n.tooMany, n.changed = true, nil
	} else if !n.tooMany {
		n.changed = append(n.changed, uid)
	}
	if e, ok := c.nodes[node]; ok {
		e.changedLocked(c)
	}
}

// Nominated returns the node where room is being made for a pod; empty: nowhere.
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

// Room is a node at some time, and the pods nominated to it: what there is for a pod that waits.
type Room struct {
	Node   *NodeInfo
	Coming []*PodInfo
}

// Room returns what there is on a node now, without pods that are only tried there; nil: there is no such node.
func (c *Cache) Room(node string) *Room {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.nodes[node]
	if !ok || e.info.Node == nil {
		return nil
	}
	e.shared = true
	room := &Room{Node: e.info, Coming: c.nominated.on[node]}
	var tried []*PodInfo
	for uid := range c.trial {
		if p, ok := c.pods[uid]; ok && p.node == node {
			tried = append(tried, p.info)
		}
	}
	if len(tried) > 0 {
		room.Node = room.Node.With(nil, tried)
	}
	return room
}

// Coming are the pods nominated to the node at a place of Nodes.
func (s *Snapshot) Coming(place int) []*PodInfo {
	if len(s.nominated) == 0 {
		return nil
	}
	return s.coming[place]
}

// ComingTo is Coming of the node of that name.
func (s *Snapshot) ComingTo(node string) []*PodInfo {
	if place := s.Place(node); place >= 0 {
		return s.Coming(int(place))
	}
	return nil
}

// AnyComing tells whether any pod is nominated.
func (s *Snapshot) AnyComing() bool { return len(s.nominated) > 0 }

// NominatedPlace returns the place of the node to which a pod is nominated; -1: there is none.
func (s *Snapshot) NominatedPlace(uid types.UID) int {
	if node, ok := s.nominated[uid]; ok {
		return int(s.Place(node))
	}
	return -1
}

// nominateLocked brings the snapshot's nominations up to date, but for the lists of nodes that changed.
func (c *Cache) nominateLocked(s *Snapshot) {
	n := &c.nominated
	if n.tooMany {
		s.nominated, n.tooMany = maps.Clone(n.at), false
	}
	for _, uid := range n.changed {
		if node, ok := n.at[uid]; ok {
			s.nominated[uid] = node
		} else {
			delete(s.nominated, uid)
		}
	}
	n.changed = n.changed[:0]
}
