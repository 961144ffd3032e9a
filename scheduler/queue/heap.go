// SPDX-License-Identifier: Apache-2.0

package queue

import (
	stdheap "container/heap"
	"time"

	"keelson/scheduler/framework"
)

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

// pods counts the pods in the heap. A group's head counts as its ready members.
func (h *heap) pods() int {
	n := len(h.items)
	for _, it := range h.items {
		if it.headOf != nil {
			n += it.headOf.ready - 1
		}
	}
	return n
}

// heaps are where items wait. Queue.mu guards them.
type heaps struct {
	active        heap // ordered by Config.Less
	backoff       heap // ordered by the end of the backoff
	errorBackoff  heap // as backoff, for pods whose attempt ended in an error
	unschedulable heap // the pods that wait for an event; the longest waiting first
}

func newHeaps(less func(a, b *framework.QueuedPod) bool) heaps {
	dueFirst := func(a, b *Item) bool { return a.due.Before(b.due) }
	return heaps{
		active:        heap{less: func(a, b *Item) bool { return less(&a.QueuedPod, &b.QueuedPod) }},
		backoff:       heap{less: dueFirst},
		errorBackoff:  heap{less: dueFirst},
		unschedulable: heap{less: func(a, b *Item) bool { return a.Since.Before(b.Since) }},
	}
}

// at is the heap of the items that are at w; nil: they are in none.
func (h *heaps) at(w where) *heap {
	switch w {
	case inActive:
		return &h.active
	case inBackoff:
		return &h.backoff
	case inErrors:
		return &h.errorBackoff
	case inUnschedulable:
		return &h.unschedulable
	default:
		return nil
	}
}

// next is when the next item is to be moved: its backoff ends, or it has been unschedulable for flush. It is zero if
// there is none.
func (h *heaps) next(flush time.Duration) time.Time {
	var next time.Time
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if it := h.backoff.first(); it != nil {
		sooner(it.due)
	}
	if it := h.errorBackoff.first(); it != nil {
		sooner(it.due)
	}
	if it := h.unschedulable.first(); it != nil {
		sooner(it.Since.Add(flush))
	}
	return next
}
