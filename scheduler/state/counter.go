// SPDX-License-Identifier: Apache-2.0

package state

// Counter holds numbers by node, and sums of them by the nodes' labels, kept up to date as pods come and go.
type Counter struct {
	of    *index
	total int64
	nodes map[string]int64
	sums  map[string]*Sums
}

// Sums are a counter's sums by the value of a node label. Read only, valid until the next Refresh.
type Sums struct {
	*Column
	N    []int64 // by the value's number
	Some int     // of them are not 0
}

// maxCells bounds how many sums an index keeps; with more all are made anew when asked for.
const maxCells = 4 << 20

func newCounter(x *index) *Counter { return &Counter{of: x, nodes: map[string]int64{}} }

// Total is the sum over all nodes, also over those whose Node object is missing.
func (c *Counter) Total() int64 { return c.total }

// On returns a node's number.
func (c *Counter) On(node string) int64 { return c.nodes[node] }

// Sums returns the sums by the value of a node label.
func (c *Counter) Sums(key string) *Sums {
	if s, ok := c.sums[key]; ok {
		return s
	}
	col := c.of.snap.Column(key)
	if c.of.cells += len(col.Values); c.of.cells > maxCells {
		c.of.topologyChanged()
		c.of.cells = len(col.Values)
	}
	s := &Sums{Column: col, N: make([]int64, len(col.Values))}
	for name, n := range c.nodes {
		if place, ok := c.of.snap.places[name]; ok {
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
	id := s.Of[place]
	if id < 0 {
		return
	}
	old := s.N[id]
	s.N[id] += n
	switch {
	case old == 0 && n != 0:
		s.Some++
	case old != 0 && old+n == 0:
		s.Some--
	}
}

// By returns the sums by the value of a node label; values with sum 0 are absent.
func (c *Counter) By(key string) map[string]int64 {
	s, m := c.Sums(key), map[string]int64{}
	for id, n := range s.N {
		if n != 0 {
			m[s.Values[id]] = n
		}
	}
	return m
}

// Among returns the sums over the nodes that a choice leaves out, by the numbers of their values; nil: all are 0.
func (c *Counter) Among(out *Choice) []int64 {
	if len(out.Out) == 0 || len(c.nodes) == 0 {
		return nil
	}
	var m []int64
	at := c.Sums(Names)
	for _, place := range out.Out {
		if n := at.N[at.Of[place]]; n != 0 {
			if m == nil {
				m = make([]int64, len(out.Values))
			}
			m[out.Of[place]] += n
		}
	}
	return m
}

func (c *Counter) add(node string, n int64) {
	c.total += n
	bump(c.nodes, node, n)
	if len(c.sums) == 0 {
		return
	}
	if place, ok := c.of.snap.places[node]; ok {
		for _, s := range c.sums {
			s.add(place, n)
		}
	}
}

// drop forgets the sums: they are made again when asked for.
func (c *Counter) drop() {
	for _, s := range c.sums {
		c.of.cells -= len(s.N)
	}
	c.sums = nil
}

func bump(m map[string]int64, key string, n int64) {
	if next := m[key] + n; next != 0 {
		m[key] = next
	} else {
		delete(m, key)
	}
}
