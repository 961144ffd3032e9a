// SPDX-License-Identifier: Apache-2.0

package state

// Column is a node label over all nodes of a snapshot. Values are numbered, so that a count for each is a slice and no map. Immutable, but for
// what Places keeps.
type Column struct {
	// Of is the number of the value that the node at a place of Snapshot.Nodes has; -1: it has none.
	Of []int32
	// Values are the values by their numbers, Nodes how many nodes have each.
	Values []string
	Nodes  []int32
	// Labelled is how many nodes have the label.
	Labelled int

	key    string
	ids    map[string]int32
	places [][]int32 // by the value's number; nil: nobody has asked
}

// Names is the key of a column that is no label: each node has its name.
const Names = "\x00name"

// maxColumns bounds how many columns are kept; with one more all are made anew.
const maxColumns = 256

// Column returns the column of a label.
func (s *Snapshot) Column(key string) *Column {
	if c, ok := s.columns[key]; ok {
		return c
	}
	c := &Column{Of: make([]int32, len(s.Nodes)), key: key, ids: map[string]int32{}}
	for i, n := range s.Nodes {
		value, ok := c.value(n)
		if !ok {
			c.Of[i] = -1
			continue
		}
		id, known := c.ids[value]
		if !known {
			id = int32(len(c.Values)) //nolint:gosec // there are fewer nodes
			c.ids[value] = id
			c.Values, c.Nodes = append(c.Values, value), append(c.Nodes, 0)
		}
		c.Of[i] = id
		c.Nodes[id]++
		c.Labelled++
	}
	if s.columns == nil || len(s.columns) >= maxColumns {
		s.columns = map[string]*Column{}
	}
	s.columns[key] = c
	return c
}

func (c *Column) value(n *NodeInfo) (string, bool) {
	if c.key == Names {
		return n.Name, true
	}
	v, ok := n.Node.Labels[c.key]
	return v, ok
}

// Key is the label's.
func (c *Column) Key() string { return c.key }

// Number returns a value's number, -1 if no node of the snapshot has it.
func (c *Column) Number(value string) int32 {
	if id, ok := c.ids[value]; ok {
		return id
	}
	return -1
}

// Places returns the places of the nodes that have a value. Only the scheduling loop may ask. Read only.
func (c *Column) Places(value string) []int32 {
	if c.places == nil {
		c.places = make([][]int32, len(c.Values))
		for place, id := range c.Of {
			if id >= 0 {
				c.places[id] = append(c.places[id], int32(place)) //nolint:gosec // there are fewer nodes
			}
		}
	}
	if id, ok := c.ids[value]; ok {
		return c.places[id]
	}
	return nil
}

// On returns the number of the value that a node has, -1 if it has none or one that no node of the snapshot has.
func (c *Column) On(n *NodeInfo) int32 {
	if v, ok := c.value(n); ok {
		if id, ok := c.ids[v]; ok {
			return id
		}
	}
	return -1
}

// Choice is which nodes a rule about labels and taints lets in, of those that have a label. Read only.
type Choice struct {
	*Column
	// In is how many of the nodes with a value are let in, by its number; Some is for how many values there is one.
	In   []int32
	Some int
	// Out are the places of nodes that have the label and are left out.
	Out []int32
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
	c := &Choice{Column: s.Column(key)}
	c.In = make([]int32, len(c.Values))
	for i, n := range s.Nodes {
		v := c.Of[i]
		switch {
		case v < 0:
		case in(n):
			if c.In[v]++; c.In[v] == 1 {
				c.Some++
			}
		default:
			c.Out = append(c.Out, int32(i)) //nolint:gosec // there are fewer nodes
		}
	}
	if s.choices == nil || len(s.choices) >= maxChoices {
		s.choices = map[string]*Choice{}
	}
	s.choices[id] = c
	return c
}
