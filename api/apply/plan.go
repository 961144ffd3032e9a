// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// shape is how ownership of a value divides.
type shape uint8

const (
	odd    shape = iota // something the plan does not know: the long way must decide
	leaf                // owned as a whole: scalars, atomic lists and maps
	fields              // a struct, owned field by field
	keys                // a map, owned key by key
	keyed               // a list of structs, owned item by item under their keys
	set                 // a list of scalars, owned value by value
)

// plan is a Go type seen through the merge schema: what compare needs to know about its values, looked up once.
type plan struct {
	shape  shape
	scalar bool // a leaf whose values are single
	// custom: values are written by their type's own MarshalJSON, and may be null.
	custom bool
	fields []fieldPlan // of a struct, by JSON name
	elem   *plan       // of a map or list
	keys   []keyPlan   // of a keyed list, by name
}

type fieldPlan struct {
	node  *node // the field as a leaf: "f:spec"
	entry *value.FieldCacheEntry
	plan  *plan
	// plain: the field is the struct's own, at index, and left out when empty or never; entry takes longer to say so.
	plain, omitEmpty bool
	index            int
}

type keyPlan struct {
	name     string
	entry    *value.FieldCacheEntry
	fallback any // the key's default; nil: none
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// planner builds plans; types may refer to themselves.
type planner struct {
	schema  *smd.Schema
	known   map[planKey]*plan
	deduced bool // the schema says nothing
}

type planKey struct {
	goType reflect.Type
	ref    string
}

func (b *planner) plan(typ reflect.Type, ref smd.TypeRef) *plan {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	name := ""
	if ref.NamedType != nil {
		name = *ref.NamedType
		if ref.ElementRelationship != nil {
			name += "!" + string(*ref.ElementRelationship)
		}
		if p, ok := b.known[planKey{typ, name}]; ok {
			return p
		}
	}
	p := &plan{custom: typ.Implements(marshaler) || reflect.PointerTo(typ).Implements(marshaler)}
	if name != "" {
		b.known[planKey{typ, name}] = p
	}
	atom, ok := b.schema.Resolve(ref)
	if ok {
		b.fill(p, typ, atom)
	}
	return p
}

func (b *planner) fill(built *plan, typ reflect.Type, atom smd.Atom) {
	switch kind := typ.Kind(); {
	case b.deduced && !built.custom:
		b.fillDeduced(built, typ, atom)
	case atom.Scalar != nil && atom.List == nil && atom.Map == nil:
		built.shape = leaf
		built.scalar = true
	case atom.Scalar != nil || built.custom:
		// odd: the value itself decides what it is
	case atom.Map != nil && atom.List == nil && kind == reflect.Struct:
		built.shape = fields
		if atom.Map.ElementRelationship == smd.Atomic {
			built.shape = leaf
			return
		}
		b.fillStruct(built, typ, atom.Map)
	case atom.Map != nil && atom.List == nil && kind == reflect.Map && typ.Key().Kind() == reflect.String:
		built.shape = keys
		if atom.Map.ElementRelationship == smd.Atomic {
			built.shape = leaf
			return
		}
		built.elem = b.plan(typ.Elem(), atom.Map.ElementType)
	case atom.List != nil && atom.Map == nil && kind == reflect.Slice:
		b.fillList(built, typ, atom.List)
	}
}

// fillDeduced decides by the Go type, as a schema that says nothing decides by the value.
func (b *planner) fillDeduced(built *plan, typ reflect.Type, atom smd.Atom) {
	switch {
	case typ.Kind() == reflect.Struct:
		built.shape = fields
		b.fillStruct(built, typ, atom.Map)
	case typ.Kind() == reflect.Map && typ.Key().Kind() == reflect.String:
		built.shape = keys
		built.elem = b.plan(typ.Elem(), atom.Map.ElementType)
	default:
		built.shape = leaf
		built.scalar = typ.Kind() != reflect.Slice
	}
}

// sparing is p, a struct's, without the fields that reset names whole: no one becomes their owner, so they need no
// look.
func (p *plan) sparing(reset [][]string) *plan {
	out := *p
	out.fields = slices.DeleteFunc(slices.Clone(p.fields), func(f fieldPlan) bool {
		return slices.ContainsFunc(reset, func(path []string) bool {
			return len(path) == 1 && f.node.name == "f:"+path[0]
		})
	})
	return &out
}

func (b *planner) fillStruct(built *plan, t reflect.Type, m *smd.Map) {
	for _, entry := range value.TypeReflectEntryOf(t).OrderedFields() {
		f := fieldPlan{node: &node{name: "f:" + entry.JsonName, member: true}, entry: entry}
		ref := m.ElementType
		if sf, ok := m.FindField(entry.JsonName); ok {
			ref = sf.Type
		}
		f.plan = b.plan(fieldType(t, entry), ref)
		f.look(t, entry.JsonName)
		built.fields = append(built.fields, f)
	}
	if !slices.IsSortedFunc(built.fields, func(x, y fieldPlan) int {
		return strings.Compare(x.node.name, y.node.name)
	}) {
		built.shape = odd
	}
}

// look finds the field called name in t itself, as encoding/json reads its tag.
func (f *fieldPlan) look(t reflect.Type, name string) {
	for i := range t.NumField() {
		tag, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if tag != name {
			continue
		}
		switch options {
		case "":
			f.plain = true
			f.index = i
		case "omitempty":
			f.plain = true
			f.omitEmpty = true
			f.index = i
		}
		return
	}
}

// fieldType is the type of the field that entry finds in a t.
func fieldType(t reflect.Type, entry *value.FieldCacheEntry) reflect.Type {
	return entry.GetFrom(reflect.New(t).Elem()).Type()
}

func (b *planner) fillList(built *plan, typ reflect.Type, list *smd.List) {
	if list.ElementRelationship != smd.Associative {
		built.shape = leaf
		return
	}
	built.elem = b.plan(typ.Elem(), list.ElementType)
	if len(list.Keys) == 0 {
		if built.elem.shape == leaf && built.elem.scalar && typ.Elem().Kind() == reflect.String && !built.elem.custom {
			built.shape = set
		}
		return
	}
	elem := typ.Elem()
	if elem.Kind() != reflect.Struct || built.elem.custom {
		return
	}
	atom, ok := b.schema.Resolve(list.ElementType)
	if !ok || atom.Map == nil {
		return
	}
	byName := value.TypeReflectEntryOf(elem).Fields()
	for _, name := range slices.Sorted(slices.Values(list.Keys)) {
		k := keyPlan{name: name, entry: byName[name]}
		if k.entry == nil || !plainKind(fieldType(elem, k.entry)) {
			return
		}
		if sf, found := atom.FindField(name); found {
			k.fallback = sf.Default
		}
		built.keys = append(built.keys, k)
	}
	built.shape = keyed
}

// plainKind reports whether values of t can be a key: strings, whole numbers and booleans that JSON shows as they are.
func plainKind(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
		return false
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64:
		return true
	}
	return false
}
