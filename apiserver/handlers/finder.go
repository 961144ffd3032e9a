// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/api/kind"
	"keelson/apiserver/resources"
)

// finder finds resources, and reads objects of built-in ones.
type finder struct{ *resources.Served }

// hasGroup reports whether the API group is built in.
func (t *finder) hasGroup(group string) bool {
	return slices.ContainsFunc(t.AllBuiltIn(), func(res *resources.Resource) bool { return res.Group == group })
}

// object returns the current version of a core object.
func (t *finder) object(ctx context.Context, resource, namespace, name string) (kind.Object, error) {
	res := t.BuiltIn(corev1.SchemeGroupVersion.WithResource(resource))
	if res == nil {
		return nil, apierrors.NewInternalError(errors.New("resource " + resource + " is not served"))
	}
	e, err := res.Storage.Get(ctx, namespace, name, "")
	if err != nil {
		return nil, err
	}
	return e.Object, nil
}

// coreObject is finder.object for a kind whose type is T.
func coreObject[T kind.Object](ctx context.Context, t *finder, resource, namespace, name string) (T, error) {
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

func (t *finder) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return coreObject[*corev1.Pod](ctx, t, "pods", namespace, name)
}
