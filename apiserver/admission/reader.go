// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reader reads the server's cache. Objects are shared and never modified (P4).
type Reader interface {
	// Get returns a 404 *apierrors.StatusError for a missing object. namespace is empty for cluster-scoped kinds.
	Get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (runtime.Object, error)
	// List returns every object of the namespace ("": all).
	List(ctx context.Context, resource schema.GroupVersionResource, namespace string) ([]runtime.Object, error)
}

// The resources of core objects that several plugins read.
var (
	Namespaces      = corev1.SchemeGroupVersion.WithResource("namespaces")
	ServiceAccounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	Pods            = corev1.SchemeGroupVersion.WithResource("pods")
)

// Get reads an object of a known type.
func Get[T runtime.Object](
	ctx context.Context, r Reader, gvr schema.GroupVersionResource, namespace, name string,
) (T, error) {
	obj, err := r.Get(ctx, gvr, namespace, name)
	if err != nil {
		var none T
		return none, err
	}
	t, ok := obj.(T)
	if !ok {
		return t, fmt.Errorf("read %s %s/%s: got a %T", gvr.Resource, namespace, name, obj)
	}
	return t, nil
}

// List reads objects of a known type.
func List[T runtime.Object](
	ctx context.Context, r Reader, gvr schema.GroupVersionResource, namespace string,
) ([]T, error) {
	objs, err := r.List(ctx, gvr, namespace)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", gvr.Resource, err)
	}
	out := make([]T, 0, len(objs))
	for _, obj := range objs {
		if t, ok := obj.(T); ok {
			out = append(out, t)
		}
	}
	return out, nil
}

// Forbidden is a plugin's 403 error, with Kubernetes' message.
func Forbidden(r *Request, format string, args ...any) *apierrors.StatusError {
	return apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, fmt.Errorf(format, args...))
}

// PodOf returns the pod in a write of pods.
func PodOf(r *Request) (*corev1.Pod, error) {
	p, ok := r.Object.(*corev1.Pod)
	if !ok {
		return nil, apierrors.NewBadRequest("resource was marked with kind Pod but was unable to be converted")
	}
	return p, nil
}

// IsNotFound also unwraps errors.
func IsNotFound(err error) bool {
	var s apierrors.APIStatus
	return errors.As(err, &s) && s.Status().Code == 404
}

// Nodes is the resource of nodes.
var Nodes = corev1.SchemeGroupVersion.WithResource("nodes")
