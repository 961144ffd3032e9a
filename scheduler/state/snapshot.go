// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Snapshot is the cluster state for one scheduling attempt. It belongs to the scheduling loop and changes only in
// Cache.Refresh.
type Snapshot struct {
	// Nodes in the order in which they are filtered: zones take turns.
	Nodes []*NodeInfo
	// Namespaces maps a namespace to its labels.
	Namespaces map[string]labels.Set

	// Epoch changes when nodes are added, removed or change places, or their labels, taints or images change.
	Epoch int64
	// Versions has a version per node, by place. It changes with the node, the pods on it and the pods nominated to it.
	Versions []int64

	version     int64
	changed     []int32 // the places that got the versions after logged, in that order
	logged      int64
	places      map[string]int32 // in Nodes, by name
	softTainted int              // nodes with PreferNoSchedule taints
	images      map[string]int
	columns     map[string]*LabelColumn
	selections  map[string]*Selection
	index       *index
	// nominatedAt has the nominated pods by place, nominatedNodes their nodes' names.
	nominatedAt    [][]*PodInfo
	nominatedNodes map[types.UID]string
}

func newSnapshot() *Snapshot {
	s := &Snapshot{
		places:         map[string]int32{},
		nominatedNodes: map[types.UID]string{},
		Namespaces:     map[string]labels.Set{},
	}
	s.index = newIndex(s)
	return s
}

// Node returns a node by name, or nil.
func (s *Snapshot) Node(name string) *NodeInfo {
	if place, ok := s.places[name]; ok {
		return s.Nodes[place]
	}
	return nil
}

// Place returns the index of a node in Nodes, or -1.
func (s *Snapshot) Place(name string) int32 {
	if place, ok := s.places[name]; ok {
		return place
	}
	return -1
}

// SoftTaints reports whether any node has a taint with effect PreferNoSchedule.
func (s *Snapshot) SoftTaints() bool { return s.softTainted > 0 }

// ImageNodes returns how many nodes have an image (by its NormalImage name).
func (s *Snapshot) ImageNodes(name string) int {
	if s.images == nil {
		s.images = map[string]int{}
		for _, n := range s.Nodes {
			for img := range n.Images {
				s.images[img]++
			}
		}
	}
	return s.images[name]
}

// Refresh updates the snapshot and returns it. Only the scheduling loop may call it and use the result.
func (c *Cache) Refresh() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	snapshot := c.snap
	snapshot.Namespaces = c.namespaces
	c.refreshNominationsLocked(snapshot)
	if c.nodesChanged {
		c.rebuildNodesLocked(snapshot)
	}
	for _, e := range c.dirty {
		e.dirty = false
		e.shared = true
		if e.pos >= 0 && e.info.Node != nil {
			snapshot.Nodes[e.pos] = e.info
			snapshot.nominatedAt[e.pos] = c.nominated.on[e.info.Name]
			snapshot.changedAt(e.pos)
		}
	}
	c.dirty = c.dirty[:0]
	if c.labelsChanged {
		snapshot.images = nil
		snapshot.columns = nil
		snapshot.selections = nil
		snapshot.softTainted = 0
		snapshot.Epoch++
		for _, n := range snapshot.Nodes {
			if n.SoftTaints {
				snapshot.softTainted++
			}
		}
		snapshot.index.topologyChanged()
	}
	if c.tooManyChanges {
		snapshot.index = newIndex(snapshot)
		for _, p := range c.pods {
			snapshot.index.apply(change{p.info, p.node, 1})
		}
	} else {
		for _, ch := range c.changes {
			snapshot.index.apply(ch)
		}
	}
	clear(c.changes)
	c.changes = c.changes[:0]
	c.nodesChanged = false
	c.labelsChanged = false
	c.tooManyChanges = false
	return snapshot
}

// maxLogged bounds the list of changed places. With about so many changes, checking all nodes is as fast.
const maxLogged = 1024

// changedAt gives the node at a place its next version.
func (s *Snapshot) changedAt(place int) {
	s.version++
	s.Versions[place] = s.version
	if len(s.changed) == maxLogged {
		s.changed = append(s.changed[:0], s.changed[maxLogged/2:]...)
		s.logged = s.logged + maxLogged/2
	}
	s.changed = append(s.changed, int32(place)) // there are fewer nodes
}

// Version is the newest of Versions.
func (s *Snapshot) Version() int64 { return s.version }

// Changed returns the places whose versions are newer than since; a place may occur more than once. known is false when
// since is too old, or nodes have changed places since then.
func (s *Snapshot) Changed(since int64) (places []int32, known bool) {
	if since < s.logged {
		return nil, false
	}
	return s.changed[since-s.logged:], true
}

// rebuildNodesLocked rebuilds Nodes: each zone's nodes by name, zones taking turns.
func (c *Cache) rebuildNodesLocked(snapshot *Snapshot) {
	zones := map[string][]*nodeEntry{}
	var names []string
	for _, e := range c.nodes {
		e.pos = -1
		if e.info.Node == nil {
			continue
		}
		z := zone(e.info.Node)
		if _, ok := zones[z]; !ok {
			names = append(names, z)
		}
		zones[z] = append(zones[z], e)
	}
	slices.Sort(names)
	longest := 0
	for _, es := range zones {
		slices.SortFunc(es, func(a, b *nodeEntry) int { return cmp.Compare(a.info.Name, b.info.Name) })
		longest = max(longest, len(es))
	}
	snapshot.Nodes = make([]*NodeInfo, 0, len(c.nodes))
	snapshot.Versions = snapshot.Versions[:0]
	snapshot.nominatedAt = snapshot.nominatedAt[:0]
	snapshot.version++
	snapshot.changed = snapshot.changed[:0]
	snapshot.logged = snapshot.version
	snapshot.places = make(map[string]int32, len(c.nodes))
	for i := range longest {
		for _, z := range names {
			if es := zones[z]; i < len(es) {
				e := es[i]
				e.pos = len(snapshot.Nodes)
				e.shared = true
				snapshot.Nodes = append(snapshot.Nodes, e.info)
				snapshot.Versions = append(snapshot.Versions, snapshot.version)
				snapshot.nominatedAt = append(snapshot.nominatedAt, c.nominated.on[e.info.Name])
				snapshot.places[e.info.Name] = int32(e.pos) // there are fewer nodes
			}
		}
	}
}
