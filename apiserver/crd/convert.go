// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"maps"
	"sync"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// converter converts objects to another version. objs are shared, not modified, and all in another version than to. The
// results have the same order and belong to the caller.
type converter interface {
	convert(ctx context.Context, objs []*unstructured.Unstructured, to string) ([]*unstructured.Unstructured, error)
}

// noneConverter is conversion strategy None: only the apiVersion changes.
type noneConverter struct{}

func (noneConverter) convert(
	_ context.Context, objs []*unstructured.Unstructured, to string,
) ([]*unstructured.Unstructured, error) {
	out := make([]*unstructured.Unstructured, len(objs))
	for i, u := range objs {
		out[i] = u.DeepCopy()
		out[i].SetAPIVersion(to)
	}
	return out, nil
}

// versions holds all versions of a definition and the converter between them.
type versions struct {
	group     string
	names     v1.CustomResourceDefinitionNames // those of the specification
	byName    map[string]*version
	storage   *version
	converter converter
	types     func() (map[string]typed.ParseableType, error) // merge schemas by apiVersion
}

func newVersions(crd *v1.CustomResourceDefinition, hooks *Hooks) (*versions, error) {
	vs := &versions{
		group:     crd.Spec.Group,
		names:     crd.Spec.Names,
		byName:    map[string]*version{},
		converter: noneConverter{},
	}
	for i := range crd.Spec.Versions {
		v, err := newVersion(crd, &crd.Spec.Versions[i])
		if err != nil {
			return nil, err
		}
		vs.byName[v.spec.Name] = v
		if v.spec.Storage {
			vs.storage = v
		}
	}
	if vs.storage == nil {
		return nil, fmt.Errorf("definition %s has no storage version", crd.Name)
	}
	if c := crd.Spec.Conversion; c != nil && c.Strategy == v1.WebhookConverter {
		var err error
		if vs.converter, err = newWebhook(crd, hooks); err != nil {
			return nil, err
		}
	}
	vs.types = sync.OnceValues(vs.mergeTypes)
	return vs, nil
}

// versionOf is the version of u; nil if the definition does not have it (any more).
func (vs *versions) versionOf(u *unstructured.Unstructured) *version {
	gvk := u.GroupVersionKind()
	if v := vs.byName[gvk.Version]; v != nil && v.gvk == gvk {
		return v
	}
	return nil
}

// convertAll converts the shared objs to v. Those already in v are returned unchanged. It adds no defaults: an object
// has the defaults of the version in which it was sent and of the storage version.
func (vs *versions) convertAll(
	ctx context.Context, objs []*unstructured.Unstructured, v *version,
) ([]*unstructured.Unstructured, error) {
	want := v.gvk.GroupVersion().String()
	out := make([]*unstructured.Unstructured, len(objs))
	var others []*unstructured.Unstructured
	for i, u := range objs {
		if u.GetAPIVersion() == want {
			out[i] = u
			continue
		}
		if vs.versionOf(u) == nil {
			return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", u.GetAPIVersion())
		}
		others = append(others, u)
	}
	if len(others) == 0 {
		return out, nil
	}
	converted, err := vs.converter.convert(ctx, others, want)
	if err != nil {
		return nil, err
	}
	for i := range out {
		if out[i] != nil {
			continue
		}
		if _, err := v.coerce(converted[0], coerceOptions{}); err != nil {
			return nil, fmt.Errorf("converted %s: %w", v.gvk.Kind, err)
		}
		out[i] = converted[0]
		converted = converted[1:]
	}
	return out, nil
}

// convertOne converts a single object.
func (vs *versions) convertOne(
	ctx context.Context, u *unstructured.Unstructured, v *version,
) (*unstructured.Unstructured, error) {
	out, err := vs.convertAll(ctx, []*unstructured.Unstructured{u}, v)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// withAPIVersion sets the version of an object that has only metadata, without the converter.
func withAPIVersion(u *unstructured.Unstructured, v *version) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	out.SetGroupVersionKind(v.gvk)
	return out
}
