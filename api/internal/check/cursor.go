// SPDX-License-Identifier: Apache-2.0

package check

import "k8s.io/apimachinery/pkg/util/validation/field"

// Cursor is where a check stands in an object. In, Index and Key step into a field and must be matched by Out. The path
// is made only where it is asked for.
type Cursor struct {
	base *field.Path
	segs []segment
	buf  [12]segment
}

// segment is one step of the path: a name, or an index, or a map key.
type segment struct {
	name  string
	index int
	kind  uint8
}

const (
	segName = iota
	segIndex
	segKey
)

// In steps into the field called name.
func (c *Cursor) In(name string) { c.segs = append(c.segs, segment{name: name}) }

// Index steps into element i.
func (c *Cursor) Index(i int) { c.segs = append(c.segs, segment{index: i, kind: segIndex}) }

// Key steps into the value at map key k.
func (c *Cursor) Key(k string) { c.segs = append(c.segs, segment{name: k, kind: segKey}) }

// Out undoes the last In, Index or Key.
func (c *Cursor) Out() { c.segs = c.segs[:len(c.segs)-1] }

// Path is the path of the current field's child, or of the field itself when child is "".
func (c *Cursor) Path(child string) *field.Path {
	path := c.base
	for _, s := range c.segs {
		switch s.kind {
		case segName:
			path = path.Child(s.name)
		case segIndex:
			path = path.Index(s.index)
		case segKey:
			path = path.Key(s.name)
		}
	}
	if child != "" {
		path = path.Child(child)
	}
	return path
}

// Within runs f with the cursor standing at the field called name.
func (c *Cursor) Within(name string, f func()) {
	c.In(name)
	f()
	c.Out()
}
