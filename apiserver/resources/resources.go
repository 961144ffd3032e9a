// SPDX-License-Identifier: Apache-2.0

// Package resources is the table of resources: one row per resource, with the properties that its kind does not have.
// Open and Compute make a Resource of every row, and Served keeps them together with the custom ones; access, handlers
// and discovery read it. The package does no I/O of its own.
package resources

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"keelson/api/apply"
	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/wire"
)

// Row is one resource. Only Kind is required.
type Row struct {
	Kind *kind.Kind
	// View: the row serves another row's objects in another version and has no storage of its own.
	View *View
	// Subresources are those with handlers of their own: "log", "exec", "binding", "token"...
	Subresources []Sub
	// ReturnsDeleted: DELETE responds with the object, not with a Status.
	ReturnsDeleted bool
	// DeletionBlocked and Terminate are for kinds whose deletion is blocked by something besides metadata.finalizers
	// (namespaces). DeletionBlocked reports whether it is blocked; Terminate marks the object as being deleted.
	DeletionBlocked func(kind.Object) bool
	Terminate       func(kind.Object)
	// Indexed has the fields by which lists and watches are often selected; the values must equal those of the kind's
	// Fields.
	Indexed map[string]func(kind.Object) string
	// ExcludedVerbs are the verbs that the resource does not support.
	ExcludedVerbs []string
	// SetCreator stores the creator in a new object.
	SetCreator func(obj kind.Object, name, uid string, groups []string, extra map[string][]string)
	// Computed: objects are computed on request and never stored; the API server has the code. ExcludedVerbs then has
	// the verbs that write and watch.
	Computed bool
	// ProtectDelete, if not nil, returns an error if the object of that name must not be deleted.
	ProtectDelete func(name string) error
	// OrphanWarning is the warning for a delete without a propagation policy, for kinds whose dependents then stay.
	OrphanWarning string
	// Deprecated is the warning for users of a deprecated resource.
	Deprecated string
	// TTL: objects expire (events).
	TTL bool
	// IsNamespace: the objects are the namespaces.
	IsNamespace bool
	// MirrorAnnotation is the annotation of mirror objects of a node's own ones ("": none).
	MirrorAnnotation string
	// NameOnCreate: Kubernetes validates the name only at creation. As names never change, this affects only
	// generateName. NameInSubresources: the name is also validated at updates of subresources.
	NameOnCreate, NameInSubresources bool
	// AllowsAnyFinalizer are the subresources ("" is the object, "*" all) whose updates accept finalizers of any name.
	// Kinds validate new objects themselves.
	AllowsAnyFinalizer []string
	// KeepsEmptyFields: present but empty fields are stored, as for kinds that Kubernetes stores as JSON.
	KeepsEmptyFields bool
	// Packed: the watch cache keeps the objects compressed, because they are large and rarely read.
	Packed bool
	// ErrorsAsFound: validation errors keep their order and the values as sent.
	ErrorsAsFound bool
	// RoutedByPath: a route depends on the path only, not on method, Content-Type and Accept.
	RoutedByPath bool
	// PatchTypes are the accepted patch types, with RoutedByPath; nil: all.
	PatchTypes []string
	// CustomFieldLabels: unknown field selectors are rejected as for a custom resource, whatever fields the kind has.
	CustomFieldLabels bool
	// Prefix is the key prefix below /registry/; "": Kubernetes' one.
	Prefix string
	// ResponseWarnings are warnings in every response.
	ResponseWarnings []string
	// CreateDenied, if not "", is the error for every create.
	CreateDenied string
	// ScalePaths are the paths of the replica count by apiVersion; nil: there is one version.
	ScalePaths map[string][]string
	// ResetFields has the fields that each subresource never changes: "" -> {{"status"}}.
	ResetFields map[string][][]string
}

// Sub is a subresource with a kind of its own.
type Sub struct {
	Name    string
	GVK     schema.GroupVersionKind // as in discovery
	Verbs   []string
	Connect bool // get and create are upgrades or proxied
}

// View converts between a stored kind and the kind that a row serves. Both functions return new objects.
type View struct {
	Of       schema.GroupResource
	ToServed func(stored kind.Object) kind.Object
	ToStored func(served kind.Object) kind.Object
	// FieldLabel maps a field label to the stored kind's.
	FieldLabel func(label string) string
}

// Resource is a row with its storage.
type Resource struct {
	Row
	*kind.Kind
	// Storage is nil for kinds that can only be created (reviews).
	Storage objects.Storage
	// FieldManagers are the field managers by subresource; "" is the object.
	FieldManagers map[string]*apply.Manager

	// Custom is set for custom resources.
	Custom *Custom

	encoders [3]*wire.Encoder
}

// Custom holds the properties of a custom resource.
type Custom struct {
	// ListKind is the kind of its lists.
	ListKind string
	// Convert converts an object of any version of the definition to this resource's. The object is shared and not
	// modified.
	Convert func(ctx context.Context, obj kind.Object) (kind.Object, error)
	// Stored is the storage version.
	Stored string
	// Schema is the kind's schema for OpenAPI: see openapi.Model.
	Schema func(v2 bool) (s *spec.Schema, open bool)
	// Sum changes with the schema and with the names: see openapi.Model.
	Sum string
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

// StorePrefix is the key prefix below /registry/.
func (row *Row) StorePrefix() string {
	if row.Prefix != "" {
		return row.Prefix
	}
	return objects.StorePrefix(row.Kind.GVR().GroupResource())
}

// TakesAnyFinalizer reports whether an update of subresource sub ("": the object) accepts finalizers of any name.
func (row *Row) TakesAnyFinalizer(sub string) bool {
	return slices.Contains(row.AllowsAnyFinalizer, sub) || slices.Contains(row.AllowsAnyFinalizer, "*")
}

// Encoder returns the encoder of the resource's objects.
func (r *Resource) Encoder(m wire.Media) *wire.Encoder { return r.encoders[m] }

// Sub returns the row's subresource name if it has a kind of its own.
func (r *Resource) Sub(name string) (Sub, bool) {
	i := slices.IndexFunc(r.Subresources, func(s Sub) bool { return s.Name == name })
	if i < 0 {
		return Sub{}, false
	}
	return r.Subresources[i], true
}

// New returns the Resource of a row with its storage.
func New(row Row, storage objects.Storage) *Resource {
	res := &Resource{
		Row:           row,
		Kind:          row.Kind,
		Storage:       storage,
		FieldManagers: map[string]*apply.Manager{},
	}
	for _, m := range []wire.Media{wire.JSON, wire.YAML, wire.Proto} {
		res.encoders[m] = wire.NewEncoder(m, res.GVK())
	}
	if row.Kind.CreateOnly {
		res.FieldManagers[""] = apply.New(row.Kind, "") // the answer says who sent it
		return res
	}
	subs := []string{""}
	for name := range row.Kind.Subs {
		subs = append(subs, name)
	}
	for _, sub := range append(subs, "scale") {
		res.FieldManagers[sub] = apply.New(row.Kind, sub, row.resetFields(sub)...)
	}
	return res
}

// NewCustom returns the Resource of a custom resource's row. managers are its field managers by subresource; the others
// are those of New.
func NewCustom(row Row, storage objects.Storage, managers map[string]*apply.Manager, custom Custom) *Resource {
	res := New(row, storage)
	maps.Copy(res.FieldManagers, managers)
	res.Custom = &custom
	return res
}

// resetFields lists the fields that sub never changes: for the object its status, for the status the spec.
func (row *Row) resetFields(sub string) [][]string {
	if own, ok := row.ResetFields[sub]; ok {
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
