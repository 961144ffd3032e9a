// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/registry"
)

// resources finds resources, and reads objects of built-in ones.
type resources struct {
	builtIn map[schema.GroupVersionResource]*registry.Resource
	custom  func(schema.GroupVersionResource) *registry.Resource // nil: there are no custom resources
}

func newResources(
	list []*registry.Resource, custom func(schema.GroupVersionResource) *registry.Resource,
) *resources {
	t := &resources{
		builtIn: make(map[schema.GroupVersionResource]*registry.Resource, len(list)),
		custom:  custom,
	}
	for _, res := range list {
		t.builtIn[res.GVR()] = res
	}
	return t
}

// resource returns the resource served as gvr, or nil.
func (t *resources) resource(gvr schema.GroupVersionResource) *registry.Resource {
	if res := t.builtIn[gvr]; res != nil || t.custom == nil {
		return res
	}
	return t.custom(gvr)
}

// hasGroup reports whether the API group is built in.
func (t *resources) hasGroup(group string) bool {
	for gvr := range t.builtIn {
		if gvr.Group == group {
			return true
		}
	}
	return false
}

// object returns the current version of a core object.
func (t *resources) object(ctx context.Context, resource, namespace, name string) (kind.Object, error) {
	res := t.builtIn[corev1.SchemeGroupVersion.WithResource(resource)]
	if res == nil {
		return nil, apierrors.NewInternalError(errors.New("resource " + resource + " is not served"))
	}
	e, err := res.Storage.Get(ctx, namespace, name, "")
	if err != nil {
		return nil, err
	}
	return e.Object, nil
}

// coreObject is resources.object for a kind whose type is T.
func coreObject[T kind.Object](ctx context.Context, t *resources, resource, namespace, name string) (T, error) {
	var none T
	obj, err := t.object(ctx, resource, namespace, name)
	if err != nil {
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		what := strings.TrimSuffix(resource, "s")
		return none, apierrors.NewInternalError(fmt.Errorf("%s %s is a %T", what, name, obj))
	}
	return typed, nil
}

func (t *resources) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return coreObject[*corev1.Pod](ctx, t, "pods", namespace, name)
}

func (t *resources) node(ctx context.Context, name string) (*corev1.Node, error) {
	return coreObject[*corev1.Node](ctx, t, "nodes", "", name)
}
