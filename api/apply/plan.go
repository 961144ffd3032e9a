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
	schema *smd.Schema
	known  map[planKey]*plan
}

type planKey struct {
	goType reflect.Type
	ref    string
}

func (b *planner) plan(t reflect.Type, ref smd.TypeRef) *plan {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := ""
	if ref.NamedType != nil {
		name = *ref.NamedType
		if ref.ElementRelationship != nil {
			name += "!" + string(*ref.ElementRelationship)
		}
		if p, ok := b.known[planKey{t, name}]; ok {
			return p
		}
	}
	p := &plan{custom: t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)}
	if name != "" {
		b.known[planKey{t, name}] = p
	}
	atom, ok := b.schema.Resolve(ref)
	if ok {
		b.fill(p, t, atom)
	}
	return p
}

func (b *planner) fill(p *plan, t reflect.Type, a smd.Atom) {
	switch kind := t.Kind(); {
	case a.Scalar != nil && a.List == nil && a.Map == nil:
		p.shape = leaf
		p.scalar = true
	case a.Scalar != nil || p.custom:
		// odd: the value itself decides what it is
	case a.Map != nil && a.List == nil && kind == reflect.Struct:
		p.shape = fields
		if a.Map.ElementRelationship == smd.Atomic {
			p.shape = leaf
			return
		}
		b.fillStruct(p, t, a.Map)
	case a.Map != nil && a.List == nil && kind == reflect.Map && t.Key().Kind() == reflect.String:
		p.shape = keys
		if a.Map.ElementRelationship == smd.Atomic {
			p.shape = leaf
			return
		}
		p.elem = b.plan(t.Elem(), a.Map.ElementType)
	case a.List != nil && a.Map == nil && kind == reflect.Slice:
		b.fillList(p, t, a.List)
	}
}

// sparing is p, a struct's, without the fields that reset names whole: nobody becomes their owner, so they need no
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

func (b *planner) fillStruct(p *plan, t reflect.Type, m *smd.Map) {
	for _, entry := range value.TypeReflectEntryOf(t).OrderedFields() {
		f := fieldPlan{node: &node{name: "f:" + entry.JsonName, member: true}, entry: entry}
		ref := m.ElementType
		if sf, ok := m.FindField(entry.JsonName); ok {
			ref = sf.Type
		}
		f.plan = b.plan(fieldType(t, entry), ref)
		f.look(t, entry.JsonName)
		p.fields = append(p.fields, f)
	}
	if !slices.IsSortedFunc(p.fields, func(x, y fieldPlan) int { return strings.Compare(x.node.name, y.node.name) }) {
		p.shape = odd
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

func (b *planner) fillList(p *plan, t reflect.Type, l *smd.List) {
	if l.ElementRelationship != smd.Associative {
		p.shape = leaf
		return
	}
	p.elem = b.plan(t.Elem(), l.ElementType)
	if len(l.Keys) == 0 {
		if p.elem.shape == leaf && p.elem.scalar && t.Elem().Kind() == reflect.String && !p.elem.custom {
			p.shape = set
		}
		return
	}
	elem := t.Elem()
	if elem.Kind() != reflect.Struct || p.elem.custom {
		return
	}
	atom, ok := b.schema.Resolve(l.ElementType)
	if !ok || atom.Map == nil {
		return
	}
	byName := value.TypeReflectEntryOf(elem).Fields()
	for _, name := range slices.Sorted(slices.Values(l.Keys)) {
		k := keyPlan{name: name, entry: byName[name]}
		if k.entry == nil || !plainKind(fieldType(elem, k.entry)) {
			return
		}
		if sf, found := atom.FindField(name); found {
			k.fallback = sf.Default
		}
		p.keys = append(p.keys, k)
	}
	p.shape = keyed
}

// plainKind tells whether values of t can be a key: strings, whole numbers and booleans that JSON shows as they are.
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
