// SPDX-License-Identifier: Apache-2.0

package state

// LabelColumn has the values of one node label for all nodes of a snapshot. Each value has an ID from 0 up, so that
// counts per value are slices and not maps. Immutable, except for the cache of Places.
type LabelColumn struct {
	// ValueIDs has the ID of the value by the node's place; -1: the node does not have the label.
	ValueIDs []int32
	// Values has the values by ID, NodeCounts the number of nodes by value ID.
	Values     []string
	NodeCounts []int32
	// Labelled is the number of nodes that have the label.
	Labelled int

	key    string
	ids    map[string]int32
	places [][]int32 // by value ID; nil: Places was not called yet
}

// NodeNames is the key of a column whose values are the nodes' names instead of a label.
const NodeNames = "\x00name"

// maxColumns bounds the number of cached columns. One more drops all.
const maxColumns = 256

// Column returns the column of a label.
func (s *Snapshot) Column(key string) *LabelColumn {
	if c, ok := s.columns[key]; ok {
		return c
	}
	labelColumn := &LabelColumn{ValueIDs: make([]int32, len(s.Nodes)), key: key, ids: map[string]int32{}}
	for i, n := range s.Nodes {
		value, ok := labelColumn.value(n)
		if !ok {
			labelColumn.ValueIDs[i] = -1
			continue
		}
		id, known := labelColumn.ids[value]
		if !known {
			id = int32(len(labelColumn.Values)) // there are fewer nodes
			labelColumn.ids[value] = id
			labelColumn.Values = append(labelColumn.Values, value)
			labelColumn.NodeCounts = append(labelColumn.NodeCounts, 0)
		}
		labelColumn.ValueIDs[i] = id
		labelColumn.NodeCounts[id]++
		labelColumn.Labelled++
	}
	if s.columns == nil || len(s.columns) >= maxColumns {
		s.columns = map[string]*LabelColumn{}
	}
	s.columns[key] = labelColumn
	return labelColumn
}

func (c *LabelColumn) value(n *NodeInfo) (string, bool) {
	if c.key == NodeNames {
		return n.Name, true
	}
	v, ok := n.Node.Labels[c.key]
	return v, ok
}

// Key returns the label's key.
func (c *LabelColumn) Key() string { return c.key }

// IDOf returns the ID of a value, -1 if no node of the snapshot has it.
func (c *LabelColumn) IDOf(value string) int32 {
	if id, ok := c.ids[value]; ok {
		return id
	}
	return -1
}

// Places returns the places of the nodes that have a value. Only the scheduling loop may call it. Read only.
func (c *LabelColumn) Places(value string) []int32 {
	if c.places == nil {
		c.places = make([][]int32, len(c.Values))
		for place, id := range c.ValueIDs {
			if id >= 0 {
				c.places[id] = append(c.places[id], int32(place)) // there are fewer nodes
			}
		}
	}
	if id, ok := c.ids[value]; ok {
		return c.places[id]
	}
	return nil
}

// ValueID returns the ID of the value that a node has, -1 if it has none or one that no node of the snapshot has.
func (c *LabelColumn) ValueID(n *NodeInfo) int32 {
	if v, ok := c.value(n); ok {
		if id, ok := c.ids[v]; ok {
			return id
		}
	}
	return -1
}

// Selection splits the nodes that have a label into those that a rule includes and those that it excludes. Read only.
type Selection struct {
	*LabelColumn
	// Included is the number of included nodes by value ID. IncludedValues is the number of values with such a node.
	Included       []int32
	IncludedValues int
	// Excluded are the places of the excluded nodes.
	Excluded []int32
}

// maxSelections bounds the number of cached selections. One more drops all.
const maxSelections = 256

// SelectNodes returns which nodes with the label key the function in includes. The result is cached under rule, for all
// pods. So in may depend only on rule and on the node's labels, taints and name.
func (s *Snapshot) SelectNodes(rule, key string, in func(*NodeInfo) bool) *Selection {
	id := key + "|" + rule
	if c, ok := s.selections[id]; ok {
		return c
	}
	selection := &Selection{LabelColumn: s.Column(key)}
	selection.Included = make([]int32, len(selection.Values))
	for i, n := range s.Nodes {
		v := selection.ValueIDs[i]
		switch {
		case v < 0:
		case in(n):
			if selection.Included[v]++; selection.Included[v] == 1 {
				selection.IncludedValues++
			}
		default:
			selection.Excluded = append(selection.Excluded, int32(i)) // there are fewer nodes
		}
	}
	if s.selections == nil || len(s.selections) >= maxSelections {
		s.selections = map[string]*Selection{}
	}
	s.selections[id] = selection
	return selection
}
