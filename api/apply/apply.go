// SPDX-License-Identifier: Apache-2.0

// Package apply knows who owns which field of an object: it merges server-side
// apply and keeps metadata.managedFields up to date for every other write. The
// handlers call it, with one Manager per kind and subresource. It decides
// nothing about storage and does no I/O.
//
// Invariants:
//  1. live objects are never modified (they may be shared with caches); only obj, the new object, is.
//  2. What Update writes is what Kubernetes' own field manager writes; track.go is only a shorter way to the same
//     bytes, and a test holds the two together.
package apply

import (
	"fmt"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"keelson/api/kind"
	"keelson/api/scheme"
	"keelson/lib/quantity"
)

// Manager tracks the fields of one kind as one subresource writes them ("" is the object itself).
type Manager struct {
	kind    *kind.Kind
	gvk     schema.GroupVersionKind
	version string
	sub     string
	reset   [][]string
	custom  func() (*Custom, error) // nil for kinds with a Go type
	shares  shares

	// What follows is built by the first write.
	once   sync.Once
	failed error
	fields *managedfields.FieldManager
	plan   *plan         // nil: always the long way
	empty  reflect.Value // what a new object is compared with
}

// New returns the manager of k's objects as sub writes them. reset are the paths that sub never changes ("status" for
// the object itself): no one becomes their owner through it.
func New(k *kind.Kind, sub string, reset ...[]string) *Manager {
	return &Manager{
		kind:    k,
		gvk:     k.GVK(),
		version: k.GVK().GroupVersion().String(),
		sub:     sub,
		reset:   reset,
	}
}

func (m *Manager) build() error {
	m.once.Do(func() { m.failed = m.buildOnce() })
	return m.failed
}

func (m *Manager) buildOnce() error {
	if m.custom != nil {
		return m.buildCustom()
	}
	var filter map[fieldpath.APIVersion]fieldpath.Filter
	if len(m.reset) > 0 {
		filter = map[fieldpath.APIVersion]fieldpath.Filter{fieldpath.APIVersion(m.version): excluding(m.reset)}
	}
	parse, err := typeOf(m.gvk)
	if err != nil {
		return err
	}
	types := typeConverter{parse}
	objects := objectTypes{m.kind}
	m.fields, err = managedfields.NewDefaultFieldManager(types, objects, objects, objects, m.gvk, m.gvk.GroupVersion(),
		m.sub, filter)
	if err != nil {
		return fmt.Errorf("field manager of %s: %w", m.gvk.Kind, err)
	}
	empty := kind.Named(m.kind.New(), m.gvk)
	m.empty = reflect.ValueOf(empty)
	m.plan = planOf(m.gvk, m.reset, m.empty.Type(), parse)
	return nil
}

// plans are those of built-in kinds, by planID: a process with many API servers makes them once.
var plans sync.Map

type planID struct {
	gvk   schema.GroupVersionKind
	reset string
}

// planOf is the plan for comparing objects of a type, without what reset names; nil: there is none.
func planOf(gvk schema.GroupVersionKind, reset [][]string, t reflect.Type, parse typed.ParseableType) *plan {
	id := planID{gvk, fmt.Sprintf("%q", reset)}
	if known, ok := plans.Load(id); ok {
		p, _ := known.(*plan)
		return p
	}
	b := planner{schema: parse.Schema, known: map[planKey]*plan{}, deduced: parse == typed.DeducedParseableType}
	p := b.plan(t, parse.TypeRef)
	if p.shape == fields {
		p = p.sparing(reset)
	} else {
		p = nil
	}
	known, _ := plans.LoadOrStore(id, p)
	p, _ = known.(*plan)
	return p
}

// Update sets obj's managedFields for a write by manager that turned live into obj. live is nil for a create. Where
// ownership cannot be worked out live's is kept: a write never fails because of it.
func (m *Manager) Update(live, obj kind.Object, manager string) error {
	if err := m.build(); err != nil {
		return err
	}
	if live != nil {
		live = kind.Named(live, m.gvk)
	}
	if err := m.track(live, obj, manager); err == nil {
		return nil
	}
	if live == nil {
		live = kind.Named(m.kind.New(), m.gvk)
	}
	m.fields.UpdateNoErrors(live, obj, manager)
	return nil
}

// Apply merges patch into live as manager and returns the new object, defaulted, with its managedFields. live is the
// object as it is, or an empty one of that name. Conflicts with other managers are a 409 Status unless force.
func (m *Manager) Apply(
	live kind.Object, patch *unstructured.Unstructured, manager string, force bool,
) (kind.Object, error) {
	if err := m.build(); err != nil {
		return nil, err
	}
	live = kind.Named(live, m.gvk)
	if m.custom != nil {
		live, _ = live.DeepCopyObject().(kind.Object) // what is merged shares parts with it
	}
	out, err := m.fields.Apply(live, patch, manager, force)
	if err != nil {
		return nil, err
	}
	obj, ok := out.(kind.Object)
	if !ok {
		return nil, fmt.Errorf("apply %s: result is a %T", m.gvk.Kind, out)
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		dropNullMetadata(u)
	}
	return obj, nil
}

// typeConverter reads objects through the schema of their kind.
type typeConverter struct{ typed.ParseableType }

func (c typeConverter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return typed.AsTyped(ordered{value.NewValueInterface(u.UnstructuredContent())}, c.Schema, c.TypeRef, opts...)
	}
	v, err := value.NewValueReflect(obj)
	if err != nil {
		return nil, fmt.Errorf("read %T: %w", obj, err)
	}
	return typed.AsTyped(ordered{v}, c.Schema, c.TypeRef, opts...)
}

func (c typeConverter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	content, ok := v.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("merged object is a %T", v.AsValue().Unstructured())
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// objectTypes is what the field manager needs to know about one kind with one version: there is nothing to convert.
type objectTypes struct{ kind *kind.Kind }

// ConvertToVersion returns obj typed and with its kind, sharing its parts. Entries of other versions are read as if
// they were of the served one, which is right as long as fields keep their names; versions that no one knows are
// refused, and the field manager then drops their entries.
func (t objectTypes) ConvertToVersion(obj runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	if gv, ok := to.(schema.GroupVersion); ok && gv != t.kind.GVK().GroupVersion() &&
		!scheme.Scheme.Recognizes(gv.WithKind(t.kind.Kind)) {
		return nil, runtime.NewNotRegisteredErrForKind(scheme.Scheme.Name(), gv.WithKind(t.kind.Kind))
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return kind.Named(obj, t.kind.GVK()), nil
	}
	out := t.kind.New()
	if err := quantity.CheckValue(u.Object, reflect.TypeOf(out)); err != nil {
		return nil, fmt.Errorf("read %s: %w", t.kind.Kind, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read %s: %w", t.kind.Kind, err)
	}
	out.GetObjectKind().SetGroupVersionKind(t.kind.GVK())
	return out, nil
}

// Convert is not used by the field manager.
func (t objectTypes) Convert(_, _, _ any) error {
	return fmt.Errorf("convert %s: only one version", t.kind.Kind)
}

// ConvertFieldLabel is not used by the field manager.
func (t objectTypes) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// Default fills in defaults after an apply.
func (t objectTypes) Default(obj runtime.Object) {
	if o, ok := obj.(kind.Object); ok {
		t.kind.Default(o)
	}
}

// New makes an empty object.
func (t objectTypes) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	obj := t.kind.New()
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj, nil
}

// SameExceptTimes reports whether two sets of entries differ at most in their timestamps.
func SameExceptTimes(a, b []metav1.ManagedFieldsEntry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x := a[i]
		y := b[i]
		if x.Manager != y.Manager || x.Operation != y.Operation || x.APIVersion != y.APIVersion ||
			x.FieldsType != y.FieldsType ||
			x.Subresource != y.Subresource || (x.FieldsV1 == nil) != (y.FieldsV1 == nil) {
			return false
		}
		if x.FieldsV1 != nil && !x.FieldsV1.Equal(*y.FieldsV1) {
			return false
		}
	}
	return true
}
