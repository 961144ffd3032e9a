// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Snapshot is the cluster as one scheduling attempt sees it. It belongs to the scheduling loop and changes only in Cache.Refresh.
type Snapshot struct {
	// Nodes in visiting order: zones take turns.
	Nodes []*NodeInfo
	// Namespaces maps a namespace to its labels.
	Namespaces map[string]labels.Set

	byName  map[string]*NodeInfo
	soft    int // nodes with PreferNoSchedule taints
	images  map[string]int
	domains map[string]map[string]int
	choices map[string]*Choice
	index   *index
}

func newSnapshot() *Snapshot {
	s := &Snapshot{byName: map[string]*NodeInfo{}, Namespaces: map[string]labels.Set{}}
	s.index = newIndex(s)
	return s
}

// Node returns a node by name, or nil.
func (s *Snapshot) Node(name string) *NodeInfo { return s.byName[name] }

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

// Domains returns the values nodes have for a label, each with the number of nodes that have it. Read only.
func (s *Snapshot) Domains(key string) map[string]int {
	d, ok := s.domains[key]
	if !ok {
		d = map[string]int{}
		for _, n := range s.Nodes {
			if v, ok := n.Node.Labels[key]; ok {
				d[v]++
			}
		}
		if s.domains == nil {
			s.domains = map[string]map[string]int{}
		}
		s.domains[key] = d
	}
	return d
}

// Choice is which nodes a rule about labels and taints lets in. Read only.
type Choice struct {
	// Values are the values that these nodes have for a label, each with how many of them have it.
	Values map[string]int
	// Out are the nodes that have the label and are left out, with their values.
	Out map[string]string
}

// maxChoices bounds how many choices are kept; with one more all are made anew.
const maxChoices = 256

// Choose returns the nodes with the label key that in lets in. rule names in: what in says may depend on rule, and on the labels, the
// taints and the name of a node, and on nothing else. So it is asked of all nodes once, and not for every pod.
func (s *Snapshot) Choose(rule, key string, in func(*NodeInfo) bool) *Choice {
	id := key + "|" + rule
	if c, ok := s.choices[id]; ok {
		return c
	}
	c := &Choice{Values: map[string]int{}, Out: map[string]string{}}
	for _, n := range s.Nodes {
		v, ok := n.Node.Labels[key]
		switch {
		case !ok:
		case in(n):
			c.Values[v]++
		default:
			c.Out[n.Name] = v
		}
	}
	if s.choices == nil || len(s.choices) >= maxChoices {
		s.choices = map[string]*Choice{}
	}
	s.choices[id] = c
	return c
}

// Refresh brings the snapshot up to date and returns it. Only the scheduling loop may call it and use the result.
func (c *Cache) Refresh() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snap
	s.Namespaces = c.namespaces
	if c.nodesChanged {
		c.relistLocked(s)
	}
	for _, e := range c.dirty {
		e.dirty, e.shared = false, true
		if e.pos >= 0 && e.info.Node != nil {
			s.Nodes[e.pos] = e.info
			s.byName[e.info.Name] = e.info
		}
	}
	c.dirty = c.dirty[:0]
	if c.labelsChanged {
		s.images, s.domains, s.choices, s.soft = nil, nil, nil, 0
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
	s.byName = make(map[string]*NodeInfo, len(c.nodes))
	for i := range longest {
		for _, z := range names {
			if es := zones[z]; i < len(es) {
				e := es[i]
				e.pos, e.shared = len(s.Nodes), true
				s.Nodes = append(s.Nodes, e.info)
				s.byName[e.info.Name] = e.info
			}
		}
	}
}
