// SPDX-License-Identifier: Apache-2.0

package state

// Counter has one number per node, and their sums by node label value. Refresh keeps them up to date.
type Counter struct {
	index *index
	total int64
	nodes map[string]int64
	sums  map[string]*Sums
}

// Sums are the sums of a counter by the value of one node label. Read only, valid until the next Refresh.
type Sums struct {
	*LabelColumn
	Counts  []int64 // by value ID
	NonZero int     // how many of Counts are not 0
}

// maxKeptSums bounds the number of sums in all counters of an index. More drops all; they are computed again on demand.
const maxKeptSums = 4 << 20

func newCounter(x *index) *Counter { return &Counter{index: x, nodes: map[string]int64{}} }

// Total is the sum over all nodes, also those without a Node object.
func (c *Counter) Total() int64 { return c.total }

// OnNode returns the number of one node.
func (c *Counter) OnNode(node string) int64 { return c.nodes[node] }

// Sums returns the sums by the value of a node label.
func (c *Counter) Sums(key string) *Sums {
	if s, ok := c.sums[key]; ok {
		return s
	}
	col := c.index.snap.Column(key)
	if c.index.keptSums += len(col.Values); c.index.keptSums > maxKeptSums {
		c.index.topologyChanged()
		c.index.keptSums = len(col.Values)
	}
	s := &Sums{LabelColumn: col, Counts: make([]int64, len(col.Values))}
	for name, n := range c.nodes {
		if place, ok := c.index.snap.places[name]; ok {
			s.add(place, n)
		}
	}
	if c.sums == nil {
		c.sums = map[string]*Sums{}
	}
	c.sums[key] = s
	return s
}

func (s *Sums) add(place int32, n int64) {
	id := s.ValueIDs[place]
	if id < 0 {
		return
	}
	old := s.Counts[id]
	s.Counts[id] += n
	switch {
	case old == 0 && n != 0:
		s.NonZero++
	case old != 0 && old+n == 0:
		s.NonZero--
	}
}

// By returns the sums by the value of a node label; values with sum 0 are absent.
func (c *Counter) By(key string) map[string]int64 {
	s := c.Sums(key)
	m := map[string]int64{}
	for id, n := range s.Counts {
		if n != 0 {
			m[s.Values[id]] = n
		}
	}
	return m
}

// SumsOfExcluded returns the sums over the nodes that a selection excludes, by value ID; nil: all are 0.
func (c *Counter) SumsOfExcluded(out *Selection) []int64 {
	if len(out.Excluded) == 0 || len(c.nodes) == 0 {
		return nil
	}
	var m []int64
	at := c.Sums(NodeNames)
	for _, place := range out.Excluded {
		if n := at.Counts[at.ValueIDs[place]]; n != 0 {
			if m == nil {
				m = make([]int64, len(out.Values))
			}
			m[out.ValueIDs[place]] += n
		}
	}
	return m
}

func (c *Counter) add(node string, n int64) {
	c.total += n
	addTo(c.nodes, node, n)
	if len(c.sums) == 0 {
		return
	}
	if place, ok := c.index.snap.places[node]; ok {
		for _, s := range c.sums {
			s.add(place, n)
		}
	}
}

// dropSums drops the cached sums. They are computed again on demand.
func (c *Counter) dropSums() {
	for _, s := range c.sums {
		c.index.keptSums -= len(s.Counts)
	}
	c.sums = nil
}

func addTo(m map[string]int64, key string, n int64) {
	if next := m[key] + n; next != 0 {
		m[key] = next
	} else {
		delete(m, key)
	}
}
