// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// TestWideMapsAreVisitedInOrder of their keys, at every depth, also those of the other side of a comparison.
func TestWideMapsAreVisitedInOrder(t *testing.T) {
	kinds := customTypes{"v1": typed.DeducedParseableType}
	m := map[string]any{}
	for i := range 5000 {
		m[fmt.Sprintf("k%d", i)] = int64(i)
	}
	object := func(spec any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "spec": spec}}
	}
	for name, spec := range map[string]any{
		"below a map": map[string]any{"a": m},
		"below a list": map[string]any{
			"l": []any{m},
		},
	} {
		typedValue, err := kinds.ObjectToTyped(object(spec))
		if err != nil {
			t.Fatal(err)
		}
		empty, err := kinds.ObjectToTyped(object(map[string]any{}))
		if err != nil {
			t.Fatal(err)
		}
		var zipped value.Value
		empty.AsValue().AsMap().Zip(value.NewValueInterface(object(spec).Object).AsMap(), value.Unordered, func(
			key string, _, r value.Value,
		) bool {
			if key == "spec" {
				zipped = r
			}
			return true
		})
		own, _ := typedValue.AsValue().AsMap().Get("spec")
		for _, v := range []value.Value{own, zipped} {
			if a, ok := v.AsMap().Get("a"); ok {
				v = a
			} else {
				l, _ := v.AsMap().Get("l")
				v = l.AsList().At(0)
			}
			for i := range 2 {
				var keys []string
				if i == 0 {
					v.AsMap().Iterate(func(key string, _ value.Value) bool {
						keys = append(keys, key)
						return true
					})
				} else {
					v.AsMap().Zip(nil, value.Unordered, func(key string, _, _ value.Value) bool {
						keys = append(keys, key)
						return true
					})
				}
				if len(keys) != len(m) || !slices.IsSorted(keys) {
					t.Errorf("%s: %d keys, in order: %t", name, len(keys), slices.IsSorted(keys))
				}
			}
		}
	}
}

// TestOrderedFindsTheSame: what an apply and a comparison find does not depend on the order.
func TestOrderedFindsTheSame(t *testing.T) {
	build := func(n, step int) map[string]any {
		m := map[string]any{}
		for i := 0; i < n; i += step {
			m[fmt.Sprintf("k%d", i)] = map[string]any{
				"x": int64(i % (step + 3)),
				"l": []any{int64(i), map[string]any{"y": "z"}},
			}
		}
		return map[string]any{"apiVersion": "v1", "spec": m, "few": map[string]any{"a": int64(step), "b": nil}}
	}
	kinds := customTypes{"v1": typed.DeducedParseableType}
	for _, sizes := range [][4]int{{10, 1, 10, 2}, {300, 1, 300, 2}, {300, 3, 40, 1}, {0, 1, 300, 1}, {300, 1, 0, 1}} {
		a := build(sizes[0], sizes[1])
		b := build(sizes[2], sizes[3])
		var got, want [2]*typed.TypedValue
		for i, o := range []map[string]any{a, b} {
			var err error
			if got[i], err = kinds.ObjectToTyped(&unstructured.Unstructured{Object: o}); err != nil {
				t.Fatal(err)
			}
			if want[i], err = typed.DeducedParseableType.FromUnstructured(o); err != nil {
				t.Fatal(err)
			}
		}
		c, err := got[0].Compare(got[1])
		if err != nil {
			t.Fatal(err)
		}
		d, err := want[0].Compare(want[1])
		if err != nil {
			t.Fatal(err)
		}
		if c.String() != d.String() {
			t.Errorf("%v: comparison %s, want %s", sizes, c, d)
		}
		c1, err := got[0].Merge(got[1])
		if err != nil {
			t.Fatal(err)
		}
		d1, err := want[0].Merge(want[1])
		if err != nil {
			t.Fatal(err)
		}
		if !value.Equals(c1.AsValue(), d1.AsValue()) {
			t.Errorf("%v: merged %v, want %v", sizes, c1.AsValue(), d1.AsValue())
		}
		s, err := got[0].ToFieldSet()
		if err != nil {
			t.Fatal(err)
		}
		w, err := want[0].ToFieldSet()
		if err != nil {
			t.Fatal(err)
		}
		if !s.Equals(w) {
			t.Errorf("%v: fields differ", sizes)
		}
	}
}
