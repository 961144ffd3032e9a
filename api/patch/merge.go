// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// The library merges JSON values, and to turn an object into them and back costs more than all else that a patch does.
// So a plain strategic merge patch is merged into the Go object itself. Whatever is not plain is left to the library,
// with its errors: directives other than $setElementOrder, unknown fields, values of another type, lists of scalars
// that are merged, repeated or missing merge keys.

// orderDirective is the prefix of the directive that says the order of a list's items.
const orderDirective = "$setElementOrder/"

// maxPlainItems bounds the items of a list, and of its patch, in a plain merge, which compares each with each.
const maxPlainItems = 250

// layout has the fields of a struct type by their JSON names.
type layout struct {
	fields map[string]*fieldLayout
	custom bool // the type has its own form in JSON
}

// fieldLayout is where a field is and, if it is a list, how patches merge it.
type fieldLayout struct {
	index    []int
	strategy string
	keyName  string
	key      []int // of the merge key in an item; nil: items have none
}

var layouts sync.Map // of *layout, by reflect.Type

func layoutOf(typ reflect.Type) *layout {
	if l, ok := layouts.Load(typ); ok {
		return l.(*layout)
	}
	l := &layout{
		fields: map[string]*fieldLayout{},
		custom: reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]()),
	}
	for _, f := range reflect.VisibleFields(typ) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || options == "inline" || !f.IsExported() {
			continue
		}
		field := &fieldLayout{index: f.Index, strategy: f.Tag.Get("patchStrategy"), keyName: f.Tag.Get("patchMergeKey")}
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
			field.key = keyOf(f.Type.Elem(), field.keyName)
		}
		l.fields[name] = field
	}
	layouts.Store(typ, l)
	return l
}

// keyOf returns the field with the JSON name of a merge key; nil: there is none.
func keyOf(item reflect.Type, name string) []int {
	for f := range item.Fields() {
		if json, _, _ := strings.Cut(f.Tag.Get("json"), ","); json == name && name != "" && f.IsExported() {
			return f.Index
		}
	}
	return nil
}

// mergeStruct merges a patch into a struct. false: the patch is not plain, and the struct is half merged.
func mergeStruct(to reflect.Value, patch map[string]any) bool {
	layout := layoutOf(to.Type())
	if layout.custom {
		return false
	}
	for name, value := range patch {
		if list, ok := strings.CutPrefix(name, orderDirective); ok {
			if patch[list] == nil {
				return false
			}
			continue // with the list
		}
		f := layout.fields[name]
		if f == nil {
			return false
		}
		if !mergeField(to.FieldByIndex(f.index), f, value, patch[orderDirective+name]) {
			return false
		}
	}
	return true
}

func mergeField(to reflect.Value, f *fieldLayout, value, order any) bool {
	list, isList := value.([]any)
	if order != nil && (!isList || f.strategy != "merge") {
		return false
	}
	switch {
	case value == nil:
		to.SetZero()
		return true
	case isList && f.strategy == "merge":
		return mergeList(to, f, list, order)
	case f.strategy != "":
		return false
	}
	return mergeValue(to, value)
}

// mergeValue merges a value, which is not nil, into one of any type.
func mergeValue(to reflect.Value, value any) bool {
	if u, ok := reflect.TypeAssert[json.Unmarshaler](to.Addr()); ok {
		return decodeScalar(u, value)
	}
	switch to.Kind() {
	case reflect.Pointer:
		if to.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
		}
		return mergeValue(to.Elem(), value)
	case reflect.Struct:
		fields, ok := value.(map[string]any)
		return ok && mergeStruct(to, fields)
	case reflect.Map:
		fields, ok := value.(map[string]any)
		return ok && mergeMap(to, fields)
	case reflect.Slice:
		list, ok := value.([]any)
		return ok && replaceList(to, list)
	default:
		return setScalar(to, value)
	}
}

// decodeScalar sets a value of a type that has its own form in JSON: a time, a quantity.
func decodeScalar(to json.Unmarshaler, value any) bool {
	switch value.(type) {
	case string, int64:
	default:
		return false
	}
	data, err := json.Marshal(value)
	return err == nil && to.UnmarshalJSON(data) == nil
}

func setScalar(to reflect.Value, value any) bool {
	switch value := value.(type) {
	case string:
		if to.Kind() == reflect.String {
			to.SetString(value)
			return true
		}
	case bool:
		if to.Kind() == reflect.Bool {
			to.SetBool(value)
			return true
		}
	case int64:
		if to.CanInt() && !to.OverflowInt(value) {
			to.SetInt(value)
			return true
		}
	}
	return false
}

func mergeMap(to reflect.Value, patch map[string]any) bool {
	if to.Type().Key().Kind() != reflect.String {
		return false
	}
	if to.IsNil() {
		to.Set(reflect.MakeMapWithSize(to.Type(), len(patch)))
	}
	for name, value := range patch {
		if strings.HasPrefix(name, "$") {
			return false
		}
		key := reflect.ValueOf(name).Convert(to.Type().Key())
		if value == nil {
			to.SetMapIndex(key, reflect.Value{})
			continue
		}
		member := reflect.New(to.Type().Elem()).Elem()
		if _, isMap := value.(map[string]any); isMap || !mergeValue(member, value) {
			return false
		}
		to.SetMapIndex(key, member)
	}
	return true
}

// replaceList sets a list that is not merged.
func replaceList(to reflect.Value, list []any) bool {
	if to.Type().Elem().Kind() == reflect.Uint8 {
		return false // bytes are a string in JSON
	}
	out := reflect.MakeSlice(to.Type(), len(list), len(list))
	for i, value := range list {
		if value == nil || !mergeValue(out.Index(i), value) {
			return false
		}
	}
	to.Set(out)
	return true
}

// mergeList merges the items of a list by their merge keys. order is the value of its $setElementOrder; nil: it has
// none.
func mergeList(to reflect.Value, f *fieldLayout, list []any, order any) bool {
	if f.key == nil || to.Len() > maxPlainItems {
		return false
	}
	patched, ok := keysOf(list, f)
	if !ok {
		return false
	}
	had := to.Len()
	keys := make([]any, 0, had+len(list))
	for i := range had {
		key := scalar(to.Index(i).FieldByIndex(f.key))
		if key == nil || slices.Contains(keys, key) {
			return false
		}
		keys = append(keys, key)
	}
	for i, key := range patched {
		at := slices.Index(keys, key)
		if at < 0 {
			at = len(keys)
			keys = append(keys, key)
			to.Set(reflect.Append(to, reflect.Zero(to.Type().Elem())))
		}
		item, _ := list[i].(map[string]any)
		if !mergeStruct(to.Index(at), item) || scalar(to.Index(at).FieldByIndex(f.key)) != key {
			return false
		}
	}
	wanted := patched
	if order != nil {
		list, _ := order.([]any)
		if wanted, ok = keysOf(list, f); !ok || !isSubsequence(patched, wanted) {
			return false
		}
	}
	rearrange(to, places(keys, wanted, had))
	return true
}

// keysOf returns the merge keys of the items of a patch; false: there is no item or too many, one has no key, or two
// have the same.
func keysOf(list []any, f *fieldLayout) ([]any, bool) {
	if len(list) == 0 || len(list) > maxPlainItems {
		return nil, false
	}
	keys := make([]any, 0, len(list))
	for _, value := range list {
		item, _ := value.(map[string]any)
		key := item[f.keyName]
		switch key.(type) {
		case string, int64:
		default:
			return nil, false
		}
		if slices.Contains(keys, key) {
			return nil, false
		}
		keys = append(keys, key)
	}
	return keys, true
}

func isSubsequence(part, of []any) bool {
	for _, key := range of {
		if len(part) > 0 && part[0] == key {
			part = part[1:]
		}
	}
	return len(part) == 0
}

// places returns the order of the items of a merged list, as the library orders them: those with wanted keys in the
// order of these, each after the other items that were before it in the list; a new item has none before it. The first
// had of the items are not new.
func places(keys, wanted []any, had int) []int {
	named := make([]int, 0, len(keys))
	rest := make([]int, 0, len(keys))
	for _, key := range wanted {
		if at := slices.Index(keys, key); at >= 0 {
			named = append(named, at)
		}
	}
	for at := range keys {
		if !slices.Contains(named, at) {
			rest = append(rest, at)
		}
	}
	out := make([]int, 0, len(keys))
	for _, at := range named {
		for len(rest) > 0 && at < had && rest[0] < at {
			out = append(out, rest[0])
			rest = rest[1:]
		}
		out = append(out, at)
	}
	return append(out, rest...)
}

// rearrange gives the items of a list another order.
func rearrange(list reflect.Value, order []int) {
	if slices.IsSorted(order) {
		return
	}
	out := reflect.MakeSlice(list.Type(), len(order), len(order))
	for i, at := range order {
		out.Index(i).Set(list.Index(at))
	}
	list.Set(out)
}

// scalar is a merge key as JSON has it; nil: it is empty, or neither a string nor an integer.
func scalar(v reflect.Value) any {
	switch {
	case v.IsZero():
		return nil
	case v.Kind() == reflect.String:
		return v.String()
	case v.CanInt():
		return v.Int()
	}
	return nil
}
