// SPDX-License-Identifier: Apache-2.0

// Package empty makes of objects what protobuf makes of them: it does not
// tell an empty list from none. A field that JSON always shows, be it set or
// not, is null when what was stored is read again; answers to writes say so too
// (and so do Kubernetes'). The handlers call it before they store a built-in
// object. It looks at nothing but such fields.
package empty

import (
	"reflect"
	"strings"
	"sync"
)

// walk forgets the empty lists below v.
type walk func(v reflect.Value)

// walks are by type; a nil walk has nothing to do.
var walks sync.Map

// NormalizeEmpty turns the empty lists and maps of obj, a pointer to a struct, into none where JSON shows the
// difference.
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
		shown bool // also when it is empty
		below walk
	}
	var steps []step
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		s := step{field: i, below: build(f.Type, inside)}
		list := f.Type.Kind() == reflect.Map || f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() != reflect.Uint8
		tag := f.Tag.Get("json")
		s.shown = list && tag != "" && !strings.Contains(tag, ",omitempty")
		if s.shown || s.below != nil {
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
			case s.shown && f.Len() == 0:
				if !f.IsNil() { // objects without such lists may be shared
					f.SetZero()
				}
			case s.below != nil:
				s.below(f)
			}
		}
	}
}
