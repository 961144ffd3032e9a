// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"container/heap"
	"container/list"
)

// groups holds connections by key, and finds the largest group in constant time. The zero value is empty. The
// listener's mu guards it.
type groups[K comparable] struct {
	byKey  map[K]*group[K]
	bySize sizeOrder[K]
	count  int // of all connections
}

// group is the connections of one key.
type group[K comparable] struct {
	key   K
	conns list.List // of *conn, the oldest first
	index int       // in sizeOrder
}

// oldest and newest return an end of the group, which is never empty while it is in groups.
func (g *group[K]) oldest() *conn { return g.conns.Front().Value.(*conn) } // as all
func (g *group[K]) newest() *conn { return g.conns.Back().Value.(*conn) }  // as all

// add appends c to the group of key.
func (gs *groups[K]) add(key K, c *conn) {
	if gs.byKey == nil {
		gs.byKey = map[K]*group[K]{}
	}
	g := gs.byKey[key]
	if g == nil {
		g = &group[K]{key: key}
		gs.byKey[key] = g
		c.place = g.conns.PushBack(c)
		heap.Push(&gs.bySize, g)
	} else {
		c.place = g.conns.PushBack(c)
		heap.Fix(&gs.bySize, g.index)
	}
	gs.count++
}

// remove takes c out of the group of key.
func (gs *groups[K]) remove(key K, c *conn) {
	g := gs.byKey[key]
	g.conns.Remove(c.place)
	c.place = nil
	gs.count--
	if g.conns.Len() > 0 {
		heap.Fix(&gs.bySize, g.index)
		return
	}
	heap.Remove(&gs.bySize, g.index)
	delete(gs.byKey, key)
}

// size is the number of connections of key.
func (gs *groups[K]) size(key K) int {
	if g := gs.byKey[key]; g != nil {
		return g.conns.Len()
	}
	return 0
}

// largest is the group with the most connections; nil: there are none.
func (gs *groups[K]) largest() *group[K] {
	if len(gs.bySize) == 0 {
		return nil
	}
	return gs.bySize[0]
}

// sizeOrder is a heap (container/heap) with the largest group first, and of equal ones that with the oldest connection.
type sizeOrder[K comparable] []*group[K]

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (s sizeOrder[K]) Len() int { return len(s) }

func (s sizeOrder[K]) Less(i, j int) bool {
	a := s[i]
	b := s[j]
	if a.conns.Len() != b.conns.Len() {
		return a.conns.Len() > b.conns.Len()
	}
	return a.oldest().number < b.oldest().number
}

func (s sizeOrder[K]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index = i
	s[j].index = j
}

func (s *sizeOrder[K]) Push(x any) {
	g := x.(*group[K]) // only add pushes
	g.index = len(*s)
	*s = append(*s, g)
}

func (s *sizeOrder[K]) Pop() any {
	last := len(*s) - 1
	g := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return g
}
