// SPDX-License-Identifier: Apache-2.0

// Package empty makes of objects what protobuf makes of them, which does not
// distinguish an empty list or map from none. A field that JSON always shows is
// null when what was stored is read again, and answers to writes have null too,
// as Kubernetes' have. The owner of a list that was stored as [] would otherwise
// change with the next write by somebody who read it, where JSON leaves it out.
// The handlers call it before they store a built-in object.
package empty

import (
	"reflect"
	"sync"
)

// walk forgets the empty lists below v.
type walk func(v reflect.Value)

// walks are by type; a nil walk has nothing to do.
var walks sync.Map

// NormalizeEmpty turns the empty lists and maps of obj, a pointer to a struct, into none.
func NormalizeEmpty(obj any) {
	if w := of(reflect.TypeOf(obj)); w != nil {
		w(reflect.ValueOf(obj))
	}
}

func of(t reflect.Type) walk {
	if w, ok := walks.Load(t); ok {
		return w.(walk) // nothing else is stored
	}
	w := build(t, map[reflect.Type]bool{})
	walks.Store(t, w)
	return w
}

// build makes the walk for typ. Types that hold themselves (inside), as schemas do, are not followed round.
func build(typ reflect.Type, inside map[reflect.Type]bool) walk {
	if inside[typ] {
		return nil
	}
	inside[typ] = true
	defer delete(inside, typ)
	//exhaustive:ignore
	switch typ.Kind() {
	case reflect.Pointer:
		if w := build(typ.Elem(), inside); w != nil {
			return func(v reflect.Value) {
				if !v.IsNil() {
					w(v.Elem())
				}
			}
		}
	case reflect.Slice:
		if w := build(typ.Elem(), inside); w != nil {
			return func(v reflect.Value) {
				for i := range v.Len() {
					w(v.Index(i))
				}
			}
		}
	case reflect.Struct:
		return buildStruct(typ, inside)
	default:
	}
	return nil
}

func buildStruct(t reflect.Type, inside map[reflect.Type]bool) walk {
	type step struct {
		field int
		list  bool // a list or map, but no bytes
		below walk
	}
	var steps []step
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		s := step{field: i, below: build(f.Type, inside)}
		s.list = f.Type.Kind() == reflect.Map || f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() != reflect.Uint8
		if s.list || s.below != nil {
			steps = append(steps, s)
		}
	}
	if steps == nil {
		return nil
	}
	return func(v reflect.Value) {
		for _, s := range steps {
			f := v.Field(s.field)
			switch {
			case s.list && f.Len() == 0:
				if !f.IsNil() { // objects without such lists may be shared
					f.SetZero()
				}
			case s.below != nil:
				s.below(f)
			}
		}
	}
}
