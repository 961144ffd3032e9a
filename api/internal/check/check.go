// SPDX-License-Identifier: Apache-2.0

// Package check collects validation errors with the field paths Kubernetes
// prints, without building a path until there is an error to report: a valid
// object costs no allocation. The packages below api use it, one List per
// object. It never decides what is valid beyond the names and numbers that
// apimachinery itself defines, and it takes its words from there.
package check

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
)

// List is the errors found so far in the object in which its cursor stands. It keeps as many of them as an answer names
// (invalid.Max) and counts the others. The zero List stands at the root.
//
// The methods that report take the name of a child of the current field ("" for the field itself; "a.b" for a deeper
// one).
type List struct {
	Cursor
	errs field.ErrorList
	more int // errors that are not in errs
}

// At returns a List that stands at base, which may be nil.
func At(base *field.Path) *List {
	l := &List{Cursor: Cursor{base: base}}
	l.segs = l.buf[:0]
	return l
}

// Errors returns what was found, nil when all is well. If there are more errors than it keeps, the last element counts
// the others.
func (l *List) Errors() field.ErrorList { return invalid.WithOthers(l.errs, l.more) }

// Len is the number of errors so far, those included that are not kept.
func (l *List) Len() int { return len(l.errs) + l.more }

// Add appends errors made elsewhere.
func (l *List) Add(errs ...*field.Error) {
	for _, err := range errs {
		if n := invalid.Count(field.ErrorList{err}); n != 1 || l.full() {
			l.more += n
			continue
		}
		l.errs = append(l.errs, err)
	}
}

// full reports whether the list keeps no further error.
func (l *List) full() bool { return len(l.errs) >= invalid.Max }

// report adds the error that what returns. A full list counts it without making it.
func (l *List) report(what func() *field.Error) {
	if l.full() {
		l.more++
		return
	}
	l.errs = append(l.errs, what())
}

// Required reports a missing value.
func (l *List) Required(child, detail string) {
	l.report(func() *field.Error { return field.Required(l.Path(child), detail) })
}

// Invalid reports a bad value.
func (l *List) Invalid(child string, value any, detail string) {
	l.report(func() *field.Error { return field.Invalid(l.Path(child), value, detail) })
}

// Forbidden reports a field that may not be set here.
func (l *List) Forbidden(child, detail string) {
	l.report(func() *field.Error { return field.Forbidden(l.Path(child), detail) })
}

// Duplicate reports a value that occurred before.
func (l *List) Duplicate(child string, value any) {
	l.report(func() *field.Error { return field.Duplicate(l.Path(child), value) })
}

// NotFound reports a reference to something that does not exist.
func (l *List) NotFound(child string, value any) {
	l.report(func() *field.Error { return field.NotFound(l.Path(child), value) })
}

// TooLong reports a value of more than limit bytes.
func (l *List) TooLong(child string, limit int) {
	l.report(func() *field.Error { return field.TooLong(l.Path(child), "", limit) })
}

// NotSupported reports a value outside the enumeration valid, given in the order to print.
func NotSupported[T ~string](l *List, child string, value any, valid ...T) {
	l.report(func() *field.Error { return field.NotSupported(l.Path(child), value, valid) })
}

// OneOf reports value unless it is one of valid (in the order to print); an empty value is Required.
func OneOf[T ~string](l *List, child string, value T, valid ...T) {
	switch {
	case value == "":
		l.Required(child, "")
	case !slices.Contains(valid, value):
		NotSupported(l, child, value, valid...)
	}
}

// Needs reports an empty value.
func Needs[T ~string](l *List, child string, value T) {
	if value == "" {
		l.Required(child, "")
	}
}

// NeedsForm reports a value that is empty, or not of a form, which is a method of l.
func NeedsForm(l *List, child, value string, form func(child, value string)) {
	if value == "" {
		l.Required(child, "")
		return
	}
	form(child, value)
}

// Sort puts the errors found since the list had from errors in the order of their paths. Loops over maps call it, so
// that the same object always gets the same answer.
func (l *List) Sort(from int) { l.sortBy(from, func(e *field.Error) string { return e.Field }) }

// SortByDetail is Sort for errors that have the same path.
func (l *List) SortByDetail(from int) {
	l.sortBy(from, func(e *field.Error) string { return e.Detail })
}

func (l *List) sortBy(from int, key func(*field.Error) string) {
	if len(l.errs)-from < 2 { // which is so too where all errors since from are only counted
		return
	}
	slices.SortStableFunc(l.errs[from:], func(a, b *field.Error) int { return strings.Compare(key(a), key(b)) })
}

// Set remembers strings to find duplicates; small sets stay on the stack.
type Set struct {
	few  [8]string
	n    int
	many map[string]struct{}
}

// SetOf is the set of values.
func SetOf[T ~string](values []T) *Set {
	s := &Set{}
	for _, v := range values {
		s.Add(string(v))
	}
	return s
}

// Has reports whether v was added.
func (s *Set) Has(v string) bool {
	if s.many != nil {
		_, ok := s.many[v]
		return ok
	}
	return slices.Contains(s.few[:s.n], v)
}

// Add adds v and reports whether it was new.
func (s *Set) Add(v string) bool {
	if s.Has(v) {
		return false
	}
	if s.many == nil && s.n < len(s.few) {
		s.few[s.n] = v
		s.n++
		return true
	}
	if s.many == nil {
		s.many = make(map[string]struct{}, 2*len(s.few))
		for _, old := range s.few {
			s.many[old] = struct{}{}
		}
	}
	s.many[v] = struct{}{}
	return true
}

// Each visits the elements of the list in the field called name, standing at each of them in turn.
func Each[T any](l *List, name string, items []T, visit func(i int, item *T)) {
	l.In(name)
	for i := range items {
		l.Index(i)
		visit(i, &items[i])
		l.Out()
	}
	l.Out()
}

// Immutable reports the child unless its old and its new value mean the same.
func (l *List) Immutable(child string, value, old any) {
	if !equality.Semantic.DeepEqual(value, old) {
		l.Invalid(child, value, apivalidation.FieldImmutableErrorMsg)
	}
}

// NotNegatives wants every number that is set to be zero or more; names and numbers go in pairs.
func NotNegatives[T ~int32 | ~int64](l *List, fields ...NamedNumber[T]) {
	for _, f := range fields {
		if f.Value != nil {
			l.NotNegative(f.Name, int64(*f.Value))
		}
	}
}

// NamedNumber is a field that may be unset.
type NamedNumber[T any] struct {
	Name  string
	Value *T
}
