// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/value"

	"keelson/api/fastequal"
)

// errLongWay says that the plan does not cover an object: Kubernetes' own field manager must look at it.
var errLongWay = errors.New("not a case for the short way")

// node is a field set as managedFields write it: a path element, whether the path to it is in the set, and what is
// below.
type node struct {
	name   string // "f:spec", `k:{"name":"main"}`, `v:"x"`
	member bool
	kids   []*node
}

// changes are what comparing two objects finds below one path; nil is nothing. changed holds what was added or has
// another value.
type changes struct{ changed, removed *node }

// side is one of the two values compared. Absent is not the same as null.
type side struct {
	v       reflect.Value
	present bool
}

// null reports whether the side is an explicit null.
func (p *plan) null(s side) bool {
	if !s.present {
		return false
	}
	switch s.v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		if s.v.IsNil() {
			return true
		}
	}
	if p.custom {
		u, err := plainValue(s.v)
		return err == nil && u == nil
	}
	return false
}

// deref follows pointers.
func deref(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v
}

// compare finds what turned l into r; at least one is present. here is the path as a member without kids; it may become
// part of the result and is never changed.
func (p *plan) compare(here *node, l, r side) (changes, error) {
	if l.present && r.present && !p.scalar && l.v.Type() == r.v.Type() && fastequal.Values(l.v, r.v) {
		return changes{}, nil // as most of an object in most updates
	}
	switch p.shape {
	case leaf:
		return p.compareLeaf(here, l, r)
	case fields:
		return p.compareStruct(here, l, r)
	case keys:
		return p.compareMap(here, l, r)
	case keyed, set:
		return p.compareList(here, l, r)
	}
	return changes{}, errLongWay
}

// compareLeaf compares values that are owned as a whole.
func (p *plan) compareLeaf(here *node, l, r side) (changes, error) {
	switch {
	case !l.present:
		return changes{changed: here}, nil
	case !r.present:
		return changes{removed: here}, nil
	}
	same, err := p.same(l, r)
	if err != nil || same {
		return changes{}, err
	}
	return changes{changed: here}, nil
}

func (p *plan) same(l, r side) (bool, error) {
	lNull := p.null(l)
	rNull := p.null(r)
	if lNull || rNull {
		return lNull == rNull, nil
	}
	lv := deref(l.v)
	rv := deref(r.v)
	if lv.Kind() == reflect.String && !p.custom {
		return lv.String() == rv.String(), nil
	}
	if p.scalar && p.custom {
		a, err := plainValue(lv)
		if err != nil {
			return false, err
		}
		b, err := plainValue(rv)
		return a == b, err
	}
	if p.scalar && lv.Comparable() && rv.Comparable() {
		return lv.Equal(rv), nil
	}
	if reflect.DeepEqual(lv.Interface(), rv.Interface()) {
		return true, nil
	}
	a, err := json.Marshal(lv.Interface())
	if err != nil {
		return false, errLongWay
	}
	b, err := json.Marshal(rv.Interface())
	if err != nil {
		return false, errLongWay
	}
	return bytes.Equal(a, b), nil
}

// plainValue is what a type's own MarshalJSON makes of v: a string, number, boolean or nil.
func plainValue(v reflect.Value) (any, error) {
	e := value.TypeReflectEntryOf(v.Type())
	if !e.CanConvertToUnstructured() {
		return nil, errLongWay
	}
	u, err := e.ToUnstructured(v)
	if err != nil {
		return nil, errLongWay
	}
	switch u.(type) {
	case nil, string, int64, float64, bool:
		return u, nil
	}
	return nil, errLongWay
}

// gather collects what is found below one path.
type gather struct {
	changes changes
	name    string
}

// someKids is how many kids most nodes have at most that have any.
const someKids = 6

func (g *gather) add(c changes) {
	if c.changed != nil {
		if g.changes.changed == nil {
			g.changes.changed = &node{name: g.name, kids: make([]*node, 0, someKids)}
		}
		g.changes.changed.kids = append(g.changes.changed.kids, c.changed)
	}
	if c.removed != nil {
		if g.changes.removed == nil {
			g.changes.removed = &node{name: g.name}
		}
		g.changes.removed.kids = append(g.changes.removed.kids, c.removed)
	}
}

// end adds the path itself where one side does not have it.
func (g *gather) end(l, r side) changes {
	switch {
	case !l.present:
		if g.changes.changed == nil {
			g.changes.changed = &node{name: g.name}
		}
		g.changes.changed.member = true
	case !r.present:
		if g.changes.removed == nil {
			g.changes.removed = &node{name: g.name}
		}
		g.changes.removed.member = true
	}
	return g.changes
}

func (p *plan) compareStruct(here *node, l, r side) (changes, error) {
	if p.emptyStruct(r) && p.emptyStruct(l) { // r first: it seldom is
		return p.compareLeaf(here, l, r)
	}
	g := gather{name: here.name}
	lNull := !l.present || p.null(l)
	rNull := !r.present || p.null(r)
	lv := deref(l.v)
	rv := deref(r.v)
	for i := range p.fields {
		fieldPlan := &p.fields[i]
		var fl, fr side
		if !lNull {
			fl = fieldPlan.in(lv)
		}
		if !rNull {
			fr = fieldPlan.in(rv)
		}
		if !fl.present && !fr.present {
			continue
		}
		c, err := fieldPlan.plan.compare(fieldPlan.node, fl, fr)
		if err != nil {
			return changes{}, err
		}
		g.add(c)
	}
	return g.end(l, r), nil
}

func (f *fieldPlan) in(v reflect.Value) side {
	if !f.plain {
		fv := f.entry.GetFrom(v)
		return side{fv, !f.entry.CanOmit(fv)}
	}
	fv := v.Field(f.index)
	return side{fv, !f.omitEmpty || !isEmpty(fv)}
}

// isEmpty reports what omitempty omits.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String, reflect.Slice, reflect.Map, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func (p *plan) emptyStruct(s side) bool {
	if !s.present || p.null(s) {
		return true
	}
	v := deref(s.v)
	for i := range p.fields {
		if p.fields[i].in(v).present {
			return false
		}
	}
	return true
}

func length(s side) int {
	if v := deref(s.v); s.present && (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) {
		return v.Len()
	}
	return 0
}

func (p *plan) compareMap(here *node, l, r side) (changes, error) {
	if length(l) == 0 && length(r) == 0 {
		return p.compareLeaf(here, l, r)
	}
	lv := deref(l.v)
	rv := deref(r.v)
	known := make([]mapKey, 0, length(l)+length(r))
	if length(l) > 0 {
		for it := lv.MapRange(); it.Next(); {
			k := it.Key()
			known = append(known, mapKey{k.String(), k})
		}
	}
	if length(r) > 0 {
		for it := rv.MapRange(); it.Next(); {
			if k := it.Key(); length(l) == 0 || !lv.MapIndex(k).IsValid() {
				known = append(known, mapKey{k.String(), k})
			}
		}
	}
	slices.SortFunc(known, func(a, b mapKey) int { return strings.Compare(a.name, b.name) })
	g := gather{name: here.name}
	for _, k := range known {
		if !writable(k.name) {
			return changes{}, errLongWay
		}
		c, err := p.elem.compare(&node{name: "f:" + k.name, member: true}, at(lv, length(l), k.value),
			at(rv, length(r), k.value))
		if err != nil {
			return changes{}, err
		}
		g.add(c)
	}
	return g.end(l, r), nil
}

// mapKey is a key of a map: as a string, and as reflection wants it.
type mapKey struct {
	name  string
	value reflect.Value
}

func at(m reflect.Value, n int, key reflect.Value) side {
	if n == 0 {
		return side{}
	}
	v := m.MapIndex(key)
	return side{v, v.IsValid()}
}

// writable reports whether s stands in managedFields as it is, without escapes.
func writable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			return false
		}
	}
	return true
}

// item is an element of a list under the name that managedFields give it.
type item struct {
	name string
	key  []any // by which items are ordered
	l, r side
}

func (p *plan) compareList(here *node, l, r side) (changes, error) {
	if length(l) == 0 && length(r) == 0 {
		return p.compareLeaf(here, l, r)
	}
	items, err := p.items(l, r)
	if err != nil {
		return changes{}, err
	}
	g := gather{name: here.name}
	for i := range items {
		c, err := p.elem.compare(&node{name: items[i].name, member: true}, items[i].l, items[i].r)
		if err != nil {
			return changes{}, err
		}
		g.add(c)
	}
	return g.end(l, r), nil
}

// indexOf finds items by their names: a few by looking at each, many by a map, so that the cost does not grow with
// their square.
type indexOf struct {
	at   map[string]int
	seen int // items that are in at
}

const fewItems = 16

// find returns the index in items of the one called name, or -1. Between calls items may only grow.
func (x *indexOf) find(items []item, name string) int {
	if len(items) <= fewItems {
		return slices.IndexFunc(items, func(o item) bool { return o.name == name })
	}
	if x.at == nil {
		x.at = map[string]int{}
	}
	for ; x.seen < len(items); x.seen++ {
		x.at[items[x.seen].name] = x.seen
	}
	if i, ok := x.at[name]; ok {
		return i
	}
	return -1
}

// items pairs up the elements of both lists, in the order managedFields have.
func (p *plan) items(l, r side) ([]item, error) {
	items := make([]item, 0, max(length(l), length(r)))
	known := indexOf{}
	for i := range length(l) {
		it, err := p.item(deref(l.v).Index(i))
		if err != nil {
			return nil, err
		}
		if known.find(items, it.name) >= 0 {
			return nil, errLongWay // a duplicate
		}
		it.l = it.r
		it.r = side{}
		items = append(items, it)
	}
	old := len(items)
	for i := range length(r) {
		it, err := p.item(deref(r.v).Index(i))
		if err != nil {
			return nil, err
		}
		at := known.find(items, it.name)
		switch {
		case at < 0:
			items = append(items, it)
		case at >= old || items[at].r.present:
			return nil, errLongWay // a duplicate
		default:
			items[at].r = it.r
		}
	}
	var failed error
	slices.SortFunc(items, func(a, b item) int {
		c, err := compareKeys(a.key, b.key)
		failed = errors.Join(failed, err)
		return c
	})
	return items, failed
}

// item names an element; its value is in r.
func (p *plan) item(v reflect.Value) (item, error) {
	it := item{r: side{v, true}}
	if p.shape == set {
		s := v.String()
		if !writable(s) {
			return it, errLongWay
		}
		it.name = `v:"` + s + `"`
		it.key = []any{s}
		return it, nil
	}
	b := make([]byte, 0, 64)
	b = append(b, "k:{"...)
	for i := range p.keys {
		keyPlan := &p.keys[i]
		key := keyPlan.fallback
		if fv := keyPlan.entry.GetFrom(v); !keyPlan.entry.CanOmit(fv) {
			key = scalarOf(deref(fv))
		}
		if key == nil {
			continue
		}
		if len(it.key) > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, keyPlan.name...)
		b = append(b, `":`...)
		switch x := key.(type) {
		case string:
			if !writable(x) {
				return it, errLongWay
			}
			b = append(append(append(b, '"'), x...), '"')
		case int64:
			b = strconv.AppendInt(b, x, 10)
		case bool:
			b = strconv.AppendBool(b, x)
		default:
			return it, errLongWay
		}
		it.key = append(it.key, keyPlan.name, key)
	}
	if len(it.key) == 0 {
		return it, errLongWay
	}
	it.name = string(append(b, '}'))
	return it, nil
}

func scalarOf(v reflect.Value) any {
	switch v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return v.Bool()
	case reflect.Int, reflect.Int32, reflect.Int64:
		return v.Int()
	}
	return nil
}

// compareKeys orders keys as managedFields do: part by part, and a shorter one first. Parts of different types are rare
// enough for the long way.
func compareKeys(a, b []any) (int, error) {
	for i := range min(len(a), len(b)) {
		var c int
		switch x := a[i].(type) {
		case string:
			y, ok := b[i].(string)
			if !ok {
				return 0, errLongWay
			}
			c = strings.Compare(x, y)
		case int64:
			y, ok := b[i].(int64)
			if !ok {
				return 0, errLongWay
			}
			c = cmp.Compare(x, y)
		default:
			return 0, errLongWay
		}
		if c != 0 {
			return c, nil
		}
	}
	return cmp.Compare(len(a), len(b)), nil
}
