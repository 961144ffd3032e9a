// SPDX-License-Identifier: Apache-2.0

package fastequal

import (
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// Share lets obj hold what old holds, field by field, where a glance knows them to be the same: what obj held there is
// garbage then, later glances end at once, and versions of an object that differ in little take little memory together.
// From then on obj has old's owner, for good: neither may be modified deeply any more. Objects
// without fields (unstructured ones) are left as they are.
func Share(obj, old runtime.Object) {
	x := reflect.ValueOf(obj)
	y := reflect.ValueOf(old)
	if x.Type() != y.Type() || x.Kind() != reflect.Pointer || x.Elem().Kind() != reflect.Struct || x == y {
		return
	}
	x = x.Elem()
	y = y.Elem()
	for _, part := range partsOf(x.Type()) {
		a := x.FieldByIndex(part.at)
		b := y.FieldByIndex(part.at)
		if part.same(a, b) {
			a.Set(b)
		}
	}
}

// part is a field of an object, or of a struct in it, that points to memory of its own.
type part struct {
	at   []int
	same glance
}

var parts sync.Map // reflect.Type of an object to its []part

func partsOf(t reflect.Type) []part {
	if known, ok := parts.Load(t); ok {
		return known.([]part) // nothing else is stored
	}
	const depth = 2 // metadata, spec and status, and what they consist of
	made := findParts(t, nil, depth)
	parts.Store(t, made)
	return made
}

func findParts(t reflect.Type, at []int, depth int) []part {
	var out []part
	for i := range t.NumField() {
		structField := t.Field(i)
		if !structField.IsExported() {
			continue
		}
		path := append(slices.Clip(at), i)
		switch structField.Type.Kind() {
		case reflect.Struct:
			if depth > 1 {
				out = append(out, findParts(structField.Type, path, depth-1)...)
				continue
			}
			out = append(out, part{path, glanceOf(structField.Type)})
		case reflect.Slice, reflect.Map, reflect.Pointer, reflect.String:
			out = append(out, part{path, glanceOf(structField.Type)})
		}
	}
	return out
}
