// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/auth"
)

// Config holds what the writes depend on.
type Config struct {
	Served    *resources.Served
	Admission *admission.Chain
	// Authorizer checks the right to create when an update or apply creates the object; nil: not checked.
	Authorizer auth.Authorizer
	// Guards check writes of a resource by their user, in addition to admission.
	Guards map[schema.GroupResource]Guard
	// Allocators assign what the server allocates to the objects of a resource.
	Allocators map[schema.GroupResource]Allocator
}

// Guard checks a new or changed object depending on the request's writer and verb, after mutating admission and before
// validation; old is nil for a create. It modifies nothing.
type Guard func(ctx context.Context, a *auth.Attributes, obj, old runtime.Object) error

// Allocator allocates what the server assigns to objects (cluster IPs).
type Allocator interface {
	// Begin allocates for a new or changed object, after mutating admission and before validation. settle is called
	// once, with whether the object was stored.
	Begin(ctx context.Context, obj, old kind.Object, dry bool) (settle func(stored bool), err error)
	// AfterDelete releases what a deleted object had.
	AfterDelete(ctx context.Context, obj kind.Object)
}

// Writer runs the steps of a write between decoding and the response: see Create, Change and Remove.
type Writer struct {
	Admission Admitter
	// Own writes on behalf of the server.
	Own *Own
	// Authorizer is Config.Authorizer.
	Authorizer auth.Authorizer
	guards     map[schema.GroupResource]Guard
	allocators map[schema.GroupResource]Allocator
}

// New returns the writer of all resources. Admission may create a namespace for the write that it admits, by the same
// way: this is the one circle.
func New(config Config) *Writer {
	writer := &Writer{
		Authorizer: config.Authorizer,
		guards:     config.Guards,
		allocators: config.Allocators,
	}
	writer.Own = &Own{served: config.Served, writer: writer}
	writer.Admission = Admitter{chain: config.Admission, own: writer.Own}
	return writer
}

// guard calls the resource's guard.
func (w *Writer) guard(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, obj, old runtime.Object,
) error {
	check := w.guards[res.GroupResource()]
	if check == nil {
		return nil
	}
	return check(ctx, pipeline.Attributes(rq), obj, old)
}

// MatchNamespace sets the namespace of the request in obj, and rejects another one.
func MatchNamespace(obj metav1.Object, ns string) error {
	switch obj.GetNamespace() {
	case ns:
	case "":
		obj.SetNamespace(ns)
	default:
		if ns != "" {
			return apierrors.NewBadRequest(
				"the namespace of the provided object does not match the namespace sent on the request")
		}
		obj.SetNamespace("") // cluster-scoped
	}
	return nil
}

// MatchName checks the name of obj against the name and the namespace of the request.
func MatchName(obj metav1.Object, name, ns string) error {
	switch {
	case obj.GetName() == "":
		return apierrors.NewBadRequest(
			fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", name))
	case obj.GetName() != name:
		return apierrors.NewBadRequest(
			fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(), name))
	case ns != "" && obj.GetNamespace() != "" && obj.GetNamespace() != ns:
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the object (%s) does not match the namespace on "+
			"the request (%s)", obj.GetNamespace(), ns))
	}
	obj.SetNamespace(ns)
	return nil
}

// Namespace is the namespace of the request's object: "" for cluster-scoped kinds, including namespaces.
func Namespace(rq *pipeline.Request, res *resources.Resource) string {
	if !res.Namespaced {
		return ""
	}
	return rq.Namespace
}

// IsDryRun reports whether the options of a write ask for a dry run.
func IsDryRun(dryRun []string) bool { return len(dryRun) > 0 }
