// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	"keelson/api/kind"
)

// A strategic merge works on JSON values, and to turn a whole object into them and back costs more than all else that a patch does. So only
// what the patch names is turned: fields, and of a list with a merge key the items. Items that it does not name are represented by their
// merge keys, which is all that the merge needs to put them into order.

// division is an object divided by what a patch names.
type division struct {
	named kind.Object // has what the patch names
	rest  kind.Object // has a copy of all else; nil: the patch is about the object as a whole
	steps []step
}

// step says what a field of the result gets from rest: the field as a whole; or fields, those of a struct; or items of a list.
type step struct {
	field  int
	fields []step
	items  *items
}

// items are the items of a list that a patch names, by merge key, which is the field key of an item.
type items struct {
	key   int
	named map[any]bool
}

// layout is what a struct type is to split.
type layout struct {
	names     []string // of the fields in JSON
	divisible bool     // may be split
	keys      []int    // for a list with a merge key, which field of an item that is; else negative
}

var layouts sync.Map // of *layout, by reflect.Type

func layoutOf(t reflect.Type) *layout {
	if l, ok := layouts.Load(t); ok {
		return l.(*layout)
	}
	l := &layout{divisible: !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]())}
	for f := range t.Fields() {
		l.names, l.keys = append(l.names, jsonName(f)), append(l.keys, keyOf(f))
		l.divisible = l.divisible && f.IsExported() && jsonName(f) != ""
	}
	layouts.Store(t, l)
	return l
}

// keyOf is the field with the merge key in the items of list f; negative: it is not a list of structs that is merged by key.
func keyOf(f reflect.StructField) int {
	name := f.Tag.Get("patchMergeKey")
	if name == "" || f.Type.Kind() != reflect.Slice || f.Type.Elem().Kind() != reflect.Struct ||
		!slices.Contains(strings.Split(f.Tag.Get("patchStrategy"), ","), "merge") {
		return -1
	}
	for item := range f.Type.Elem().Fields() {
		if item.IsExported() && jsonName(item) == name {
			return item.Index[0]
		}
	}
	return -1
}

// divide divides old, which stays as it is.
func divide(k *kind.Kind, old kind.Object, patch map[string]any) division {
	from := reflect.ValueOf(old).Elem()
	if from.Kind() != reflect.Struct || hasDirective(patch) {
		return division{named: kind.Named(old, k.GVK())}
	}
	d := division{named: k.New(), rest: k.New()}
	d.steps = split(from, reflect.ValueOf(d.named).Elem(), reflect.ValueOf(d.rest).Elem(), patch)
	d.named.GetObjectKind().SetGroupVersionKind(k.GVK())
	d.rest, _ = d.rest.DeepCopyObject().(kind.Object)
	return d
}

// unite gives obj, which the patch has made of named, the rest.
func (d division) unite(obj kind.Object) {
	if d.rest != nil {
		join(reflect.ValueOf(obj).Elem(), reflect.ValueOf(d.rest).Elem(), d.steps)
	}
}

// split sets the fields of named and rest, structs of the type of from.
func split(from, named, rest reflect.Value, patch map[string]any) []step {
	l := layoutOf(from.Type())
	steps := make([]step, 0, len(l.names))
	for i, name := range l.names {
		value, ok := patch[name]
		if !ok {
			rest.Field(i).Set(from.Field(i))
			steps = append(steps, step{field: i})
			continue
		}
		if fields := divisible(from.Field(i), value); fields != nil {
			steps = append(steps, step{field: i, fields: split(from.Field(i), named.Field(i), rest.Field(i), fields)})
			continue
		}
		if list := splitList(l.keys[i], from.Field(i), named.Field(i), rest.Field(i), value); list != nil {
			steps = append(steps, step{field: i, items: list})
			continue
		}
		named.Field(i).Set(from.Field(i))
	}
	return steps
}

// join is the reverse of split.
func join(to, rest reflect.Value, steps []step) {
	for _, s := range steps {
		switch to, rest := to.Field(s.field), rest.Field(s.field); {
		case s.items != nil:
			s.items.join(to, rest)
		case s.fields != nil:
			join(to, rest, s.fields)
		default:
			to.Set(rest)
		}
	}
}

// divisible returns the fields of v that a patch names; nil: v is taken as a whole.
func divisible(v reflect.Value, value any) map[string]any {
	fields, ok := value.(map[string]any)
	if !ok || hasDirective(fields) || v.Kind() != reflect.Struct || !layoutOf(v.Type()).divisible {
		return nil
	}
	return fields
}

// splitList sets named to the items that the patch names and the merge keys of the others, and rest to the others; nil: the list is taken
// as a whole. key is the field with the merge key.
func splitList(key int, from, named, rest reflect.Value, value any) *items {
	if key < 0 || from.Len() == 0 {
		return nil
	}
	list := namedItems(key, from.Type().Elem(), value)
	if list == nil {
		return nil
	}
	seen := make(map[any]bool, from.Len())
	for i := range from.Len() {
		k := from.Index(i).Field(key)
		if k.IsZero() || seen[scalar(k)] {
			return nil
		}
		seen[scalar(k)] = true
	}
	named.Set(reflect.MakeSlice(from.Type(), from.Len(), from.Len()))
	rest.Set(reflect.MakeSlice(from.Type(), 0, from.Len()))
	for i := range from.Len() {
		item := from.Index(i)
		if k := item.Field(key); !list.named[scalar(k)] {
			named.Index(i).Field(key).Set(k)
			rest.Set(reflect.Append(rest, item))
			continue
		}
		named.Index(i).Set(item)
	}
	return list
}

// join puts the items of rest in the places of their merge keys.
func (l *items) join(to, rest reflect.Value) {
	others := make(map[any]reflect.Value, rest.Len())
	for i := range rest.Len() {
		others[scalar(rest.Index(i).Field(l.key))] = rest.Index(i)
	}
	for i := range to.Len() {
		if item, ok := others[scalar(to.Index(i).Field(l.key))]; ok {
			to.Index(i).Set(item)
		}
	}
}

// namedItems returns the items of type t in a patch of a list; nil: it is not of plain items.
func namedItems(key int, t reflect.Type, value any) *items {
	patch, ok := value.([]any)
	if !ok {
		return nil
	}
	name := layoutOf(t).names[key]
	list := &items{key: key, named: make(map[any]bool, len(patch))}
	for _, item := range patch {
		fields, ok := item.(map[string]any)
		if !ok || hasDirective(fields) || !isScalar(t.Field(key).Type, fields[name]) {
			return nil
		}
		list.named[fields[name]] = true
	}
	return list
}

// isScalar reports whether value is what a string or an integer of type t is in JSON.
func isScalar(t reflect.Type, value any) bool {
	switch value.(type) {
	case string:
		return t.Kind() == reflect.String
	case int64:
		return reflect.Zero(t).CanInt()
	}
	return false
}

// scalar is v as JSON has it, where isScalar allows it.
func scalar(v reflect.Value) any {
	if v.CanInt() {
		return v.Int()
	}
	return v.String()
}

func hasDirective(patch map[string]any) bool {
	for key := range patch {
		if strings.HasPrefix(key, "$") {
			return true
		}
	}
	return false
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
