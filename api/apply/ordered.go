// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// wide is how many keys a map has that is visited in their order.
const wide = 64

// ordered shows a value whose wide maps are visited in the order of their keys. Field sets are sorted slices: keys in
// random order, as a Go map yields them, move half of the set for each insertion, which takes seconds for 60,000 keys.
type ordered struct{ value.Value }

// asOrdered makes v ordered unless it has nothing below it.
func asOrdered(v value.Value) value.Value {
	if v == nil || !v.IsMap() && !v.IsList() {
		return v
	}
	return ordered{v}
}

// AsMap is the value as a map.
func (o ordered) AsMap() value.Map { return orderedMap{o.Value.AsMap()} }

// AsMapUsing is AsMap with an allocator.
func (o ordered) AsMapUsing(a value.Allocator) value.Map { return orderedMap{o.Value.AsMapUsing(a)} }

// AsList is the value as a list.
func (o ordered) AsList() value.List { return orderedList{o.Value.AsList()} }

// AsListUsing is AsList with an allocator.
func (o ordered) AsListUsing(a value.Allocator) value.List {
	return orderedList{o.Value.AsListUsing(a)}
}

type orderedMap struct{ value.Map }

func plainMap(m value.Map) value.Map {
	if o, ok := m.(orderedMap); ok {
		return o.Map
	}
	return m
}

func (m orderedMap) Get(key string) (value.Value, bool) {
	v, ok := m.Map.Get(key)
	return asOrdered(v), ok
}

func (m orderedMap) GetUsing(a value.Allocator, key string) (value.Value, bool) {
	v, ok := m.Map.GetUsing(a, key)
	return asOrdered(v), ok
}

func (m orderedMap) Equals(other value.Map) bool { return m.Map.Equals(plainMap(other)) }

func (m orderedMap) EqualsUsing(a value.Allocator, other value.Map) bool {
	return m.Map.EqualsUsing(a, plainMap(other))
}

func (m orderedMap) Iterate(visit func(string, value.Value) bool) bool {
	return m.IterateUsing(value.HeapAllocator, visit)
}

func (m orderedMap) IterateUsing(allocator value.Allocator, visit func(string, value.Value) bool) bool {
	n := m.Length()
	if n <= wide {
		return m.Map.IterateUsing(allocator, func(key string, v value.Value) bool { return visit(key, asOrdered(v)) })
	}
	keys := make([]string, 0, n)
	m.Map.IterateUsing(allocator, func(key string, _ value.Value) bool {
		keys = append(keys, key)
		return true
	})
	slices.Sort(keys)
	for _, key := range keys {
		v, _ := m.Map.GetUsing(allocator, key)
		more := visit(key, asOrdered(v))
		allocator.Free(v)
		if !more {
			return false
		}
	}
	return true
}

func (m orderedMap) Zip(other value.Map, order value.MapTraverseOrder, visit func(
	string, value.Value, value.Value,
) bool,
) bool {
	return m.ZipUsing(value.HeapAllocator, other, order, visit)
}

// ZipUsing makes the other side's values ordered too: a merged object is none of ours.
func (m orderedMap) ZipUsing(
	a value.Allocator, other value.Map, order value.MapTraverseOrder, visit func(string, value.Value, value.Value) bool,
) bool {
	if m.Length() > wide || other != nil && other.Length() > wide {
		order = value.LexicalKeyOrder
	}
	return m.Map.ZipUsing(a, plainMap(other), order, func(key string, l, r value.Value) bool {
		return visit(key, asOrdered(l), asOrdered(r))
	})
}

type orderedList struct{ value.List }

func plainList(l value.List) value.List {
	if o, ok := l.(orderedList); ok {
		return o.List
	}
	return l
}

func (l orderedList) At(i int) value.Value { return asOrdered(l.List.At(i)) }

func (l orderedList) AtUsing(a value.Allocator, i int) value.Value {
	return asOrdered(l.List.AtUsing(a, i))
}

func (l orderedList) Equals(other value.List) bool { return l.List.Equals(plainList(other)) }

func (l orderedList) EqualsUsing(a value.Allocator, other value.List) bool {
	return l.List.EqualsUsing(a, plainList(other))
}

func (l orderedList) Range() value.ListRange { return orderedRange{l.List.Range()} }

func (l orderedList) RangeUsing(a value.Allocator) value.ListRange {
	return orderedRange{l.List.RangeUsing(a)}
}

type orderedRange struct{ value.ListRange }

func (r orderedRange) Item() (int, value.Value) {
	i, v := r.ListRange.Item()
	return i, asOrdered(v)
}
