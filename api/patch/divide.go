// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

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
	steps := make([]step, 0, from.NumField())
	for i := range from.NumField() {
		f := from.Type().Field(i)
		value, ok := patch[jsonName(f)]
		if !ok {
			rest.Field(i).Set(from.Field(i))
			steps = append(steps, step{field: i})
			continue
		}
		if fields := divisible(f.Type, value); fields != nil {
			steps = append(steps, step{field: i, fields: split(from.Field(i), named.Field(i), rest.Field(i), fields)})
			continue
		}
		if list := splitList(f, from.Field(i), named.Field(i), rest.Field(i), value); list != nil {
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

// divisible returns the fields that a patch names in a value of type t; nil: the value is taken as a whole.
func divisible(t reflect.Type, value any) map[string]any {
	fields, ok := value.(map[string]any)
	if !ok || hasDirective(fields) || t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()) {
		return nil
	}
	for i := range t.NumField() {
		if f := t.Field(i); !f.IsExported() || jsonName(f) == "" {
			return nil
		}
	}
	return fields
}

// splitList sets named to the items that the patch names and the merge keys of the others, and rest to the others; nil: the list is taken
// as a whole.
func splitList(f reflect.StructField, from, named, rest reflect.Value, value any) *items {
	list := namedItems(f, value)
	if list == nil || from.Len() == 0 {
		return nil
	}
	seen := make(map[any]bool, from.Len())
	for i := range from.Len() {
		key := from.Index(i).Field(list.key)
		if seen[scalar(key)] || key.IsZero() {
			return nil
		}
		seen[scalar(key)] = true
	}
	named.Set(reflect.MakeSlice(f.Type, from.Len(), from.Len()))
	rest.Set(reflect.MakeSlice(f.Type, 0, from.Len()))
	for i := range from.Len() {
		item := from.Index(i)
		if key := item.Field(list.key); !list.named[scalar(key)] {
			named.Index(i).Field(list.key).Set(key)
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

// namedItems returns the items in a patch of a list; nil: the list has no merge keys, or the patch is not of plain items.
func namedItems(f reflect.StructField, value any) *items {
	patch, ok := value.([]any)
	if !ok || f.Type.Kind() != reflect.Slice || f.Type.Elem().Kind() != reflect.Struct ||
		!slices.Contains(strings.Split(f.Tag.Get("patchStrategy"), ","), "merge") {
		return nil
	}
	name := f.Tag.Get("patchMergeKey")
	list := &items{key: fieldNamed(f.Type.Elem(), name), named: make(map[any]bool, len(patch))}
	if list.key < 0 {
		return nil
	}
	for _, item := range patch {
		fields, ok := item.(map[string]any)
		if !ok || hasDirective(fields) || !isScalar(f.Type.Elem().Field(list.key).Type, fields[name]) {
			return nil
		}
		list.named[fields[name]] = true
	}
	return list
}

// fieldNamed is the index of the field that JSON calls name; negative: there is none.
func fieldNamed(t reflect.Type, name string) int {
	for i := range t.NumField() {
		if f := t.Field(i); name != "" && f.IsExported() && jsonName(f) == name {
			return i
		}
	}
	return -1
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
