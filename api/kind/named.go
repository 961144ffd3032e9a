// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Named returns obj with its kind and version filled in: obj itself where it has them, else a shallow copy, since obj
// may be shared (P4).
func Named[T runtime.Object](obj T, gvk schema.GroupVersionKind) T {
	if gvk.Empty() || obj.GetObjectKind().GroupVersionKind() == gvk {
		return obj
	}
	if u, ok := any(obj).(*unstructured.Unstructured); ok {
		c := &unstructured.Unstructured{Object: maps.Clone(u.Object)} // its kind is in the map, which is shared too
		c.SetGroupVersionKind(gvk)
		if named, ok := any(c).(T); ok {
			return named
		}
	}
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return obj
	}
	c := reflect.New(v.Type().Elem())
	c.Elem().Set(v.Elem())
	named, ok := reflect.TypeAssert[T](c)
	if !ok {
		return obj
	}
	named.GetObjectKind().SetGroupVersionKind(gvk)
	return named
}

// Fill sets *p to v where it is nil, as defaulting does.
func Fill[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// Value is *p, or the zero value where p is nil.
func Value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// FillNil replaces nil by no bytes: a key without a value is "" in JSON and not null.
func FillNil(data map[string][]byte) {
	for key, value := range data {
		if value == nil {
			data[key] = []byte{}
		}
	}
}

// FillZero sets *p to v where it has its zero value, as defaulting does.
func FillZero[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
