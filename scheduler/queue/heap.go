// SPDX-License-Identifier: Apache-2.0

package queue

import stdheap "container/heap"

// heap is a binary heap. Item.pos is the item's position in it.
type heap struct {
	items []*Item
	less  func(a, b *Item) bool
}

func (h *heap) Len() int           { return len(h.items) }
func (h *heap) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }
func (h *heap) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].pos = i
	h.items[j].pos = j
}

// Push implements heap.Interface of container/heap: it appends the item.
func (h *heap) Push(x any) {
	it := x.(*Item)
	it.pos = len(h.items)
	h.items = append(h.items, it)
}

// Pop implements heap.Interface: it removes the last item. The queue uses push and pop instead.
func (h *heap) Pop() any {
	last := len(h.items) - 1
	it := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return it
}

func (h *heap) push(it *Item)   { stdheap.Push(h, it) }
func (h *heap) remove(it *Item) { stdheap.Remove(h, it.pos) }
func (h *heap) fix(it *Item)    { stdheap.Fix(h, it.pos) }

func (h *heap) first() *Item {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0]
}

func (h *heap) pop() *Item {
	if len(h.items) == 0 {
		return nil
	}
	return stdheap.Pop(h).(*Item)
}
