// SPDX-License-Identifier: Apache-2.0

// Package kind describes what the server must know about one kind of object:
// its names, defaults, validation, selectable fields, printer columns and
// subresources, all free of I/O. Each api/<group>/<kind>.go fills one Spec;
// apiserver/resources lists them. Adding a kind means one Spec and one row.
//
// Invariants:
//  1. Functions of a Spec are pure: same object in, same answer out, nothing kept.
//  2. Default, PrepareCreate and PrepareUpdate modify only their (first) argument;
//     the others modify nothing. old objects may be shared with caches (P4).
//  3. Validation words and field paths are Kubernetes' own.
package kind

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object is any API object with metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Names are how a kind is called.
type Names struct {
	Group      string // "" for core
	Version    string
	Kind       string // "Pod"
	Resource   string // "pods"
	Singular   string // "pod"
	ShortNames []string
	Categories []string // "all"
	Namespaced bool
}

// GVK and GVR are the kind's full names.
func (n Names) GVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: n.Group, Version: n.Version, Kind: n.Kind}
}

// GVR is the kind's resource with group and version.
func (n Names) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: n.Group, Version: n.Version, Resource: n.Resource}
}

// Spec is the typed description of a kind. Any func may be nil, meaning: nothing to do.
type Spec[T Object] struct {
	Names
	New     func() T
	NewList func() runtime.Object

	// Default fills in what the client left out, as the versioned API documents it.
	Default func(obj T)
	// PrepareCreate drops what a client may not set when creating (status) and sets what the server owns.
	PrepareCreate func(obj T)
	// PrepareUpdate keeps from old what a plain update may not change (status) and bumps generation when the spec
	// changed.
	PrepareUpdate func(obj, old T)
	// Validate is run on create, ValidateUpdate on update (it repeats Validate where Kubernetes does). Neither checks
	// metadata that ValidateObjectMeta covers except through ValidateName.
	Validate       func(obj T) field.ErrorList
	ValidateUpdate func(obj, old T) field.ErrorList
	// ValidateName checks metadata.name; prefix is true for a generateName. Default: DNS-1123 subdomain.
	ValidateName func(name string, prefix bool) []string
	// MetaLast: on create the metadata is only looked at when Validate finds nothing wrong, and any name will do that
	// can stand in a path.
	MetaLast bool
	// Warnings are sent as warning headers; old is the zero T at create.
	Warnings func(obj, old T) []string
	// EarlyWarnings are sent at create, too: those of what PrepareCreate replaces. It is called before that.
	EarlyWarnings func(obj T) []string
	// Fields are the selectable fields beyond metadata.name and metadata.namespace.
	Fields func(obj T) fields.Set
	// Columns and Row print the kind as a Table; Row's cells match Columns. Default: Name and Age.
	Columns []metav1.TableColumnDefinition
	Row     func(obj T) []any
	// Done says in a Table's row that the object has finished; nil while it has not.
	Done func(obj T) []metav1.TableRowCondition

	// Status is set when the kind has a status subresource.
	Status *Sub[T]
	// More are further subresources that take the same object: "resize", "ephemeralcontainers", "approval", "finalize".
	More map[string]*Sub[T]
	// Scale is set when the kind has a scale subresource.
	Scale *Scale[T]

	// Grace decides a graceful deletion: it may set deletionTimestamp-related fields through opts and returns the
	// seconds to wait; nil or 0 seconds: deleted at once (unless finalizers hold it). With 0 the answer says that it
	// was.
	Grace func(obj T, opts *metav1.DeleteOptions) int64
	// CreateOnUpdate lets PUT create the object. UnconditionalUpdate lets PUT omit resourceVersion.
	CreateOnUpdate        bool
	NoUnconditionalUpdate bool
	// OrphanByDefault keeps dependents when a deletion names no propagation policy (replicationcontrollers).
	OrphanByDefault bool
	// Immutable kinds that cannot be read back (reviews) have no storage; CreateOnly says so.
	CreateOnly bool
	// StoredVersions reads the JSON form of versions that other servers store, by version. Versions that are written
	// alike need no function.
	StoredVersions map[string]func(doc []byte) (T, error)
}

// Sub is a subresource that updates part of the object.
type Sub[T Object] struct {
	// PrepareUpdate keeps from old everything that this subresource does not own.
	PrepareUpdate  func(obj, old T)
	ValidateUpdate func(obj, old T) field.ErrorList
	// Warnings are sent as warning headers; those of the Spec are not repeated.
	Warnings func(obj T) []string
}

// Scale reads and writes the replica count.
type Scale[T Object] struct {
	// Get returns spec.replicas, status.replicas and the label selector in string form.
	Get func(obj T) (spec, status int32, selector string)
	Set func(obj T, replicas int32)
	// Path is where the count lives, for managedFields: "spec", "replicas".
	Path []string
}

// Kind is a Spec with its type erased, as the registry and the handlers use it. Every func is set.
type Kind struct {
	Names
	New     func() Object
	NewList func() runtime.Object
	// Read turns JSON into an object, for kinds without a Go type; nil for all others. What the kind does not know is
	// dropped and, when check is set, named in strict, together with keys that occur twice.
	Read           func(doc []byte, check bool) (obj Object, strict []error, err error)
	Default        func(obj Object)
	PrepareCreate  func(obj Object)
	PrepareUpdate  func(obj, old Object)
	Validate       func(obj Object) field.ErrorList
	ValidateUpdate func(obj, old Object) field.ErrorList
	// Rules runs what a client wrote as validation, which may take long; nil: there are no such rules. It is called
	// after Validate or ValidateUpdate, of the object itself or of subresource sub, with the errors found so far, and
	// returns those it adds. old is nil on create. It ends with ctx.
	Rules        func(ctx context.Context, sub string, obj, old Object, found field.ErrorList) field.ErrorList
	ValidateName func(name string, prefix bool) []string
	MetaLast     bool
	Warnings     func(obj, old Object) []string
	// EarlyWarnings is called before PrepareCreate.
	EarlyWarnings func(obj Object) []string
	Fields        func(obj Object) fields.Set
	Columns       []metav1.TableColumnDefinition
	Row           func(obj Object) []any
	// Done is nil for kinds whose objects never finish.
	Done func(obj Object) []metav1.TableRowCondition
	// Subs has an entry "status" when the kind has that subresource, and one for each of Spec.More.
	Subs                map[string]*ErasedSub
	Scale               *ErasedScale
	Graceful            bool // there is a Grace
	Grace               func(obj Object, opts *metav1.DeleteOptions) int64
	CreateOnUpdate      bool
	UnconditionalUpdate bool
	OrphanByDefault     bool
	CreateOnly          bool
	StoredVersions      map[string]func(doc []byte) (Object, error)
}

// ErasedSub is Sub without its type.
type ErasedSub struct {
	PrepareUpdate  func(obj, old Object)
	ValidateUpdate func(obj, old Object) field.ErrorList
	Warnings       func(obj Object) []string // nil: none
}

// ErasedScale is Scale without its type.
type ErasedScale struct {
	Get  func(obj Object) (spec, status int32, selector string)
	Set  func(obj Object, replicas int32)
	Path []string
	// Check, if not nil, reports why an object has no replica count to read.
	Check func(obj Object) error
}
