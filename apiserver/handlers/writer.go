// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/auth"
)

// writer runs the steps of a write between decoding and the response. Verbs, subresources and the server itself write
// through it: see create, change and remove.
type writer struct {
	admission admitter
	// authorizer checks the right to create when an update or apply creates the object; nil: not checked.
	authorizer auth.Authorizer
	guards     map[schema.GroupResource]Guard
	allocators map[schema.GroupResource]Allocator
}

// guard calls the resource's guard.
func (w *writer) guard(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, obj, old runtime.Object,
) error {
	check := w.guards[res.GroupResource()]
	if check == nil {
		return nil
	}
	return check(ctx, pipeline.Attributes(rq), obj, old)
}

// matchNamespace sets the namespace of the request in obj, and rejects another one.
func matchNamespace(obj metav1.Object, ns string) error {
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

func matchName(obj metav1.Object, name, ns string) error {
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

// namespace is the namespace of the request's object: "" for cluster-scoped kinds, including namespaces.
func namespace(rq *pipeline.Request, res *resources.Resource) string {
	if !res.Namespaced {
		return ""
	}
	return rq.Namespace
}
