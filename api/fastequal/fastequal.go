// SPDX-License-Identifier: Apache-2.0

// Package fastequal compares two values of an API type quickly. Most updates leave most of an object unchanged, and
// several steps of an update ask: validation for immutable fields, generation, managedFields. A comparison allocates
// nothing and errs on one side only: true is certain, false may mean that a full comparison is needed.
package fastequal

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

// Equal reports whether what a and b point to is deeply the same; nil and empty differ, and so do the ways to
// write a quantity. Neither may be nil.
func Equal[T any](a, b *T) bool {
	return Values(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
}

// Semantically is equality.Semantic.DeepEqual of two structs, sooner: only fields that a glance does not know to be the
// same get a closer look.
func Semantically[T any](a, b *T) bool {
	return semantically(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
}

// Objects is Semantically for two objects of one kind.
func Objects(a, b runtime.Object) bool {
	x := reflect.ValueOf(a)
	y := reflect.ValueOf(b)
	if x.Type() != y.Type() || x.Kind() != reflect.Pointer || x.Elem().Kind() != reflect.Struct {
		return equality.Semantic.DeepEqual(a, b)
	}
	return semantically(x.Elem(), y.Elem())
}

func semantically(a, b reflect.Value) bool {
	for i := range a.NumField() {
		x := a.Field(i)
		y := b.Field(i)
		if !Values(x, y) && !equality.Semantic.DeepEqual(x.Addr().Interface(), y.Addr().Interface()) {
			return false
		}
	}
	return true
}

// Values is Equal for two values of one type.
func Values(a, b reflect.Value) bool {
	return glanceOf(a.Type())(a, b)
}

// glance compares two values of the type that it was made for.
type glance func(a, b reflect.Value) bool

var known sync.Map // reflect.Type to glance

func glanceOf(t reflect.Type) glance {
	g, ok := known.Load(t)
	if !ok {
		g = *(planner{}).plan(t)
		known.Store(t, g)
	}
	return g.(glance) // nothing else is stored
}

// planner holds the glances of the types below one; types may contain themselves, so they are filled in as they are
// found.
type planner map[reflect.Type]*glance

func (p planner) plan(t reflect.Type) *glance {
	if g := p[t]; g != nil {
		return g
	}
	g := new(glance)
	p[t] = g
	*g = p.fill(t)
	return g
}

func (p planner) fill(typ reflect.Type) glance {
	switch typ {
	case reflect.TypeFor[resource.Quantity]():
		return as(quantities)
	case reflect.TypeFor[time.Time]():
		return as(func(a, b *time.Time) bool { return a.Equal(*b) })
	}
	switch typ.Kind() {
	case reflect.String:
		return func(a, b reflect.Value) bool { return a.String() == b.String() }
	case reflect.Bool:
		return func(a, b reflect.Value) bool { return a.Bool() == b.Bool() }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(a, b reflect.Value) bool { return a.Int() == b.Int() }
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(a, b reflect.Value) bool { return a.Uint() == b.Uint() }
	case reflect.Float32, reflect.Float64:
		return func(a, b reflect.Value) bool { return a.Float() == b.Float() }
	case reflect.Pointer:
		elem := p.plan(typ.Elem())
		return func(a, b reflect.Value) bool {
			return a.UnsafePointer() == b.UnsafePointer() || !a.IsNil() && !b.IsNil() && (*elem)(a.Elem(), b.Elem())
		}
	case reflect.Slice:
		return slicesOf(typ, p.plan(typ.Elem()))
	case reflect.Struct:
		return p.structs(typ)
	case reflect.Map:
		return mapsOf(typ)
	}
	// Interfaces: objects inside of others are compared as the bytes that they came as.
	return func(a, b reflect.Value) bool { return a.IsZero() && b.IsZero() }
}

// as compares what is of a type by means of that type.
func as[T any](g func(a, b *T) bool) glance {
	return func(a, b reflect.Value) bool {
		if !a.CanAddr() || !b.CanAddr() || !a.CanInterface() || !b.CanInterface() {
			return false
		}
		x, _ := reflect.TypeAssert[*T](a.Addr())
		y, _ := reflect.TypeAssert[*T](b.Addr())
		return g(x, y)
	}
}

// quantities of the same value and format are written alike.
func quantities(a, b *resource.Quantity) bool { return a.Format == b.Format && a.Cmp(*b) == 0 }

func slicesOf(t reflect.Type, elem *glance) glance {
	octets := t.Elem().Kind() == reflect.Uint8
	return func(value, b reflect.Value) bool {
		n := value.Len()
		switch {
		case n != b.Len() || value.IsNil() != b.IsNil():
			return false
		case value.UnsafePointer() == b.UnsafePointer():
			return true
		case octets:
			return bytes.Equal(value.Bytes(), b.Bytes())
		}
		for i := range n {
			if !(*elem)(value.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
}

func (p planner) structs(t reflect.Type) glance {
	var fields []*glance
	for f := range t.Fields() {
		fields = append(fields, p.plan(f.Type))
	}
	return func(a, b reflect.Value) bool {
		for i, g := range fields {
			if !(*g)(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
}

// mapsOf knows the maps that objects have many of; of others only that they are empty or one and the same.
func mapsOf(t reflect.Type) glance {
	var inside func(a, b any) bool
	switch t {
	case reflect.TypeFor[map[string]string]():
		inside = func(a, b any) bool { return maps.Equal(a.(map[string]string), b.(map[string]string)) } // t
	case reflect.TypeFor[map[string][]byte]():
		inside = func(a, b any) bool {
			return maps.EqualFunc(a.(map[string][]byte), b.(map[string][]byte), slices.Equal[[]byte]) // t
		}
	case reflect.TypeFor[corev1.ResourceList]():
		inside = func(a, b any) bool {
			return maps.EqualFunc(a.(corev1.ResourceList), b.(corev1.ResourceList), // t
				func(x, y resource.Quantity) bool { return quantities(&x, &y) })
		}
	}
	return func(a, b reflect.Value) bool {
		switch {
		case a.Len() != b.Len() || a.IsNil() != b.IsNil():
			return false
		case a.Len() == 0 || a.UnsafePointer() == b.UnsafePointer():
			return true
		}
		return inside != nil && a.CanInterface() && b.CanInterface() && inside(a.Interface(), b.Interface())
	}
}
