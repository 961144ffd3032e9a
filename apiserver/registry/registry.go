// SPDX-License-Identifier: Apache-2.0

// Package registry is THE table of resources: one row per resource, and the
// little that a row can say beyond its kind. The server builds a Resource from
// every row; handlers and discovery read them. Nothing here does I/O.
package registry

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"keelson/api/apply"
	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/wire"
	"keelson/auth"
)

// Row is one resource. Only Kind is needed.
type Row struct {
	Kind *kind.Kind
	// View: the row serves another row's objects in another version and stores nothing itself.
	View *View
	// Also are the subresources with handlers of their own: "log", "exec", "binding", "token"...
	Also []Sub
	// ReturnsDeleted: DELETE answers with the object, not with a Status.
	ReturnsDeleted bool
	// Held and Terminate are for kinds that something beside metadata.finalizers keeps alive (namespaces). Held tells whether it
	// still does; Terminate notes on the object that it is being deleted.
	Held      func(kind.Object) bool
	Terminate func(kind.Object)
	// Indexed are fields by which lists and watches are often selected, with how to read them; the same as the kind's Fields say.
	Indexed map[string]func(kind.Object) string
	// Without are verbs that the resource lacks although its kind is stored.
	Without []string
	// Author writes into a new object who creates it.
	Author func(obj kind.Object, name, uid string, groups []string, extra map[string][]string)
	// Computed: objects of this kind are made when somebody asks for them and never stored; the server knows how. The row is Without the
	// verbs that change and watch.
	Computed bool
	// Keeps, if not nil, tells why an object of that name may not be deleted.
	Keeps func(name string) error
	// Preserves is what a client is told that deletes an object without saying what shall become of its dependents, where they stay.
	Preserves string
	// Deprecated is what clients are told who still use the resource.
	Deprecated string
	// TTL: objects of this kind go away by themselves (events).
	TTL bool
	// Reset are the fields, beside status, that each subresource never changes: "" -> {{"status"}}.
	Reset map[string][][]string
}

// Sub is a subresource that is not the object itself.
type Sub struct {
	Name    string
	GVK     schema.GroupVersionKind // as discovery shows it
	Verbs   []string
	Connect bool // verbs get and create are upgrades or proxies
}

// View converts between a stored kind and the one a row serves. Both functions return new objects.
type View struct {
	Of       schema.GroupResource
	ToServed func(stored kind.Object) kind.Object
	ToStored func(served kind.Object) kind.Object
	// FieldLabel maps a field selector's label to the stored kind's.
	FieldLabel func(label string) string
}

// Resource is a row at work.
type Resource struct {
	Row
	*kind.Kind
	// Storage is nil for kinds that are only created (reviews).
	Storage objects.Storage
	// Fields tracks field owners, by subresource; "" is the object itself.
	Fields map[string]*apply.Manager

	// Begin, if not nil, settles what of a new or changed object the server hands out (addresses), after mutating admission and before
	// validation, which sees the final object. settle is called once, with whether it was stored. Ended is told of an object that is gone.
	Begin func(ctx context.Context, obj, old kind.Object, dry bool) (settle func(stored bool), err error)
	Ended func(ctx context.Context, obj kind.Object)

	// Custom is set for resources that a definition made, at run time.
	Custom *Custom
	// Guard, if not nil, judges a new or changed object by who writes it, after mutating admission and before validation; old is nil for
	// a creation. It modifies nothing.
	Guard func(ctx context.Context, u *auth.User, namespace string, obj, old runtime.Object) error

	encoders [3]*wire.Encoder
}

// Custom is what sets a custom resource apart.
type Custom struct {
	// Notices go out as warnings with every answer: the version is deprecated.
	Notices []string
	// Terminating: the definition is being deleted, and nothing may be created any more.
	Terminating bool
	// ListKind is the kind of lists.
	ListKind string
	// Convert returns an object of any version of the definition in this resource's. The object is shared and stays as it is.
	Convert func(ctx context.Context, obj kind.Object) (kind.Object, error)
	// Stored is the version that objects are stored in.
	Stored string
	// ScalePaths say where each version keeps its replica count, by apiVersion.
	ScalePaths map[string][]string
	// Schema is what OpenAPI says about the kind: see openapi.Model.
	Schema func(v2 bool) (s *spec.Schema, open bool)
}

// GroupResource is the resource's name in messages.
func (r *Resource) GroupResource() schema.GroupResource { return r.GVR().GroupResource() }

// ListGVK is the kind of a list.
func (r *Resource) ListGVK() schema.GroupVersionKind {
	gvk := r.GVK()
	if r.Custom != nil {
		gvk.Kind = r.Custom.ListKind
		return gvk
	}
	gvk.Kind += "List"
	return gvk
}

// Encoder encodes the resource's objects.
func (r *Resource) Encoder(m wire.Media) *wire.Encoder { return r.encoders[m] }

// Sub returns the row's subresource of that name that is not the object itself.
func (r *Resource) Sub(name string) (Sub, bool) {
	i := slices.IndexFunc(r.Also, func(s Sub) bool { return s.Name == name })
	if i < 0 {
		return Sub{}, false
	}
	return r.Also[i], true
}

// New makes a Resource of row over its storage.
func New(row Row, storage objects.Storage) *Resource {
	r := &Resource{Row: row, Kind: row.Kind, Storage: storage, Fields: map[string]*apply.Manager{}}
	for _, m := range []wire.Media{wire.JSON, wire.YAML, wire.Proto} {
		r.encoders[m] = wire.NewEncoder(m, r.GVK())
	}
	if row.Kind.CreateOnly {
		return r
	}
	subs := []string{""}
	for name := range row.Kind.Subs {
		subs = append(subs, name)
	}
	for _, sub := range append(subs, "scale") {
		r.Fields[sub] = apply.New(row.Kind, sub, row.reset(sub)...)
	}
	return r
}

// reset lists what sub never changes: the object itself not its status, the status not the spec.
func (row *Row) reset(sub string) [][]string {
	if own, ok := row.Reset[sub]; ok {
		return own
	}
	switch _, hasStatus := row.Kind.Subs["status"]; {
	case sub == "" && hasStatus:
		return [][]string{{"status"}}
	case sub == "status":
		return [][]string{{"spec"}}
	}
	return nil
}
