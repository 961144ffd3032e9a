// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Snapshot is the cluster as one scheduling attempt sees it. It belongs to the scheduling loop and changes only in Cache.Refresh.
type Snapshot struct {
	// Nodes in visiting order: zones take turns.
	Nodes []*NodeInfo
	// Namespaces maps a namespace to its labels.
	Namespaces map[string]labels.Set

	// Epoch is another one whenever nodes came, went or changed places, or their labels, taints or images changed.
	Epoch int64
	// Versions are other numbers, by place in Nodes, whenever a node, the pods on it or the pods nominated to it have changed.
	Versions []int64

	version int64
	changed []int32 // the places that got the versions after logged, in their order
	logged  int64
	places  map[string]int32 // in Nodes, by name
	soft    int              // nodes with PreferNoSchedule taints
	images  map[string]int
	columns map[string]*Column
	choices map[string]*Choice
	index   *index
	// coming are the nominated pods by place in Nodes, nominated their nodes' names.
	coming    [][]*PodInfo
	nominated map[types.UID]string
}

func newSnapshot() *Snapshot {
	s := &Snapshot{places: map[string]int32{}, nominated: map[types.UID]string{}, Namespaces: map[string]labels.Set{}}
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

// Place returns where in Nodes a node is, or -1.
func (s *Snapshot) Place(name string) int32 {
	if place, ok := s.places[name]; ok {
		return place
	}
	return -1
}

// SoftTaints reports whether any node has a taint with effect PreferNoSchedule.
func (s *Snapshot) SoftTaints() bool { return s.soft > 0 }

// ImageNodes returns how many nodes have an image (named as nodes name it).
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

// Refresh brings the snapshot up to date and returns it. Only the scheduling loop may call it and use the result.
func (c *Cache) Refresh() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snap
	s.Namespaces = c.namespaces
	c.nominateLocked(s)
	if c.nodesChanged {
		c.relistLocked(s)
	}
	for _, e := range c.dirty {
		e.dirty, e.shared = false, true
		if e.pos >= 0 && e.info.Node != nil {
			s.Nodes[e.pos], s.coming[e.pos] = e.info, c.nominated.on[e.info.Name]
			s.changedAt(e.pos)
		}
	}
	c.dirty = c.dirty[:0]
	if c.labelsChanged {
		s.images, s.columns, s.choices, s.soft = nil, nil, nil, 0
		s.Epoch++
		for _, n := range s.Nodes {
			if n.Soft {
				s.soft++
			}
		}
		s.index.topologyChanged()
	}
	if c.tooManyChanges {
		s.index = newIndex(s)
		for _, p := range c.pods {
			s.index.apply(change{p.info, p.node, 1})
		}
	} else {
		for _, ch := range c.changes {
			s.index.apply(ch)
		}
	}
	clear(c.changes)
	c.changes = c.changes[:0]
	c.nodesChanged, c.labelsChanged, c.tooManyChanges = false, false, false
	return s
}

// maxLogged bounds how many of the last changes are known; from about so many on it is as quick to look at all nodes.
const maxLogged = 1024

// changedAt gives the node at a place its next version.
func (s *Snapshot) changedAt(place int) {
	s.version++
	s.Versions[place] = s.version
	if len(s.changed) == maxLogged {
		s.changed, s.logged = append(s.changed[:0], s.changed[maxLogged/2:]...), s.logged+maxLogged/2
	}
	s.changed = append(s.changed, int32(place)) //nolint:gosec // nobody has so many nodes
}

// Version is the newest of Versions.
func (s *Snapshot) Version() int64 { return s.version }

// Changed returns the places whose versions are newer than since, some of them more than once. It does not know when that is long ago, or
// nodes have changed places since.
func (s *Snapshot) Changed(since int64) (places []int32, known bool) {
	if since < s.logged {
		return nil, false
	}
	return s.changed[since-s.logged:], true
}

// relistLocked orders the nodes anew: by zone, each zone's nodes by name, zones taking turns.
func (c *Cache) relistLocked(s *Snapshot) {
	zones := map[string][]*entry{}
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
		slices.SortFunc(es, func(a, b *entry) int { return cmp.Compare(a.info.Name, b.info.Name) })
		longest = max(longest, len(es))
	}
	s.Nodes = make([]*NodeInfo, 0, len(c.nodes))
	s.Versions, s.coming = s.Versions[:0], s.coming[:0]
	s.version++
	s.changed, s.logged = s.changed[:0], s.version
	s.places = make(map[string]int32, len(c.nodes))
	for i := range longest {
		for _, z := range names {
			if es := zones[z]; i < len(es) {
				e := es[i]
				e.pos, e.shared = len(s.Nodes), true
				s.Nodes, s.Versions = append(s.Nodes, e.info), append(s.Versions, s.version)
				s.coming = append(s.coming, c.nominated.on[e.info.Name])
				s.places[e.info.Name] = int32(e.pos) //nolint:gosec // nobody has so many nodes
			}
		}
	}
}
