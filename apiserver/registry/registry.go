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
	// Subresources are those subresources with handlers of their own: "log", "exec", "binding", "token"...
	Subresources []Sub
	// ReturnsDeleted: DELETE answers with the object, not with a Status.
	ReturnsDeleted bool
	// Held and Terminate are for kinds that something beside metadata.finalizers keeps alive (namespaces). Held tells whether it
	// still does; Terminate notes on the object that it is being deleted.
	Held      func(kind.Object) bool
	Terminate func(kind.Object)
	// Indexed are fields by which lists and watches are often selected, with how to read them; the same as the kind's Fields say.
	Indexed map[string]func(kind.Object) string
	// ExcludedVerbs are verbs that the resource lacks although its kind is stored.
	ExcludedVerbs []string
	// Author writes into a new object who creates it.
	Author func(obj kind.Object, name, uid string, groups []string, extra map[string][]string)
	// Computed: objects of this kind are made when somebody asks for them and never stored; the server knows how. The row then has
	// ExcludedVerbs for the verbs that change and watch.
	Computed bool
	// ProtectDelete, if not nil, tells why an object of that name may not be deleted.
	ProtectDelete func(name string) error
	// Preserves is what a client is told that deletes an object without saying what shall become of its dependents, where they stay.
	Preserves string
	// Deprecated is what clients are told who still use the resource.
	Deprecated string
	// TTL: objects of this kind go away by themselves (events).
	TTL bool
	// IsNamespace: objects of this kind are the namespaces themselves.
	IsNamespace bool
	// MirrorAnnotation is the annotation of an object that only mirrors one that a node has ("": the kind has none).
	MirrorAnnotation string
	// NameOnCreate: Kubernetes looks at the name of such an object when it is made, and at an update no more. As a name never changes, this
	// decides about generateName alone. NameInSubresources: it looks at the name when a subresource is updated too.
	NameOnCreate, NameInSubresources bool
	// AnyFinalizer are the subresources ("" is the object itself, "*" all) whose updates may write finalizers of any name. New objects are
	// the business of each kind.
	AnyFinalizer []string
	// KeepsEmpty: fields that are present and empty are stored, as in a kind that Kubernetes keeps as JSON.
	KeepsEmpty bool
	// ErrorsAsFound: what is wrong with an object is told in the order it was found in, with its values as they were sent.
	ErrorsAsFound bool
	// RoutedByPath: a request's route is chosen by the path alone, and not by method, Content-Type and Accept too.
	RoutedByPath bool
	// PatchTypes are the media types of patches that the kind takes, where RoutedByPath; nil: all.
	PatchTypes []string
	// CustomFieldLabels: field selectors are refused as for a custom resource, whatever fields the kind has.
	CustomFieldLabels bool
	// Prefix is where in the store the objects are, below /registry/; "": where Kubernetes has them.
	Prefix string
	// Notices go out as warnings with every answer.
	Notices []string
	// CreateDenied, if not "", tells why no object may be created any more.
	CreateDenied string
	// ScalePaths say where each version keeps its replica count, by apiVersion; nil: there is one version.
	ScalePaths map[string][]string
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
	// ListKind is the kind of lists.
	ListKind string
	// Convert returns an object of any version of the definition in this resource's. The object is shared and stays as it is.
	Convert func(ctx context.Context, obj kind.Object) (kind.Object, error)
	// Stored is the version that objects are stored in.
	Stored string
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

// StorePrefix is where in the store the objects are, below /registry/.
func (row *Row) StorePrefix() string {
	if row.Prefix != "" {
		return row.Prefix
	}
	return objects.StorePrefix(row.Kind.GVR().GroupResource())
}

// TakesAnyFinalizer tells whether an update of subresource sub ("": of the object itself) may write finalizers of any name.
func (row *Row) TakesAnyFinalizer(sub string) bool {
	return slices.Contains(row.AnyFinalizer, sub) || slices.Contains(row.AnyFinalizer, "*")
}

// Encoder encodes the resource's objects.
func (r *Resource) Encoder(m wire.Media) *wire.Encoder { return r.encoders[m] }

// Sub returns the row's subresource of that name that is not the object itself.
func (r *Resource) Sub(name string) (Sub, bool) {
	i := slices.IndexFunc(r.Subresources, func(s Sub) bool { return s.Name == name })
	if i < 0 {
		return Sub{}, false
	}
	return r.Subresources[i], true
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
