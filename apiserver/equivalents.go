// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"keelson/api/kind"
	"keelson/apiserver/backend"
	"keelson/apiserver/resources"
)

// Equivalents lists the other resources with the same objects as gvr: other versions, and events in their two groups.
func (r *Reader) Equivalents(gvr schema.GroupVersionResource) []schema.GroupVersionResource {
	res := r.find(gvr)
	if res == nil {
		return nil
	}
	if res.Custom == nil {
		return r.equivalents[gvr]
	}
	if r.customs == nil {
		return nil
	}
	var out []schema.GroupVersionResource
	for _, other := range r.customs() {
		if other.GroupResource() == gvr.GroupResource() && other.GVR() != gvr {
			out = append(out, other.GVR())
		}
	}
	return out
}

// setEquivalents fills equivalents from the rows.
func (r *Reader) setEquivalents(rows []resources.Row) {
	stored := func(row *resources.Row) schema.GroupResource {
		if row.View != nil {
			return row.View.Of
		}
		return row.Kind.GVR().GroupResource()
	}
	r.equivalents = map[schema.GroupVersionResource][]schema.GroupVersionResource{}
	for i := range rows {
		if rows[i].View == nil {
			continue
		}
		var family []schema.GroupVersionResource
		for j := range rows {
			if stored(&rows[j]) == stored(&rows[i]) {
				family = append(family, rows[j].Kind.GVR())
			}
		}
		for _, gvr := range family {
			others := slices.DeleteFunc(slices.Clone(family), func(o schema.GroupVersionResource) bool {
				return o == gvr
			})
			r.equivalents[gvr] = others
		}
	}
}

// Kind returns the kind of gvr.
func (r *Reader) Kind(gvr schema.GroupVersionResource) (schema.GroupVersionKind, bool) {
	res := r.find(gvr)
	if res == nil {
		return schema.GroupVersionKind{}, false
	}
	return res.GVK(), true
}

// Describe returns the kind.Kind of gvr, or nil.
func (r *Reader) Describe(gvr schema.GroupVersionResource) *kind.Kind {
	if res := r.find(gvr); res != nil {
		return res.Kind
	}
	return nil
}

// ResourceOf returns the resource of a kind.
func (r *Reader) ResourceOf(gvk schema.GroupVersionKind) (gvr schema.GroupVersionResource, namespaced, ok bool) {
	for _, res := range r.resources {
		if res.GVK() == gvk {
			return res.GVR(), res.Namespaced, true
		}
	}
	if r.customs != nil {
		for _, res := range r.customs() {
			if res.GVK() == gvk {
				return res.GVR(), res.Namespaced, true
			}
		}
	}
	return gvr, false, false
}

// Types returns the type converter for objects of gvr.
func (r *Reader) Types(gvr schema.GroupVersionResource) (managedfields.TypeConverter, error) {
	res := r.find(gvr)
	if res == nil || res.FieldManagers[""] == nil {
		return nil, fmt.Errorf("merge %s: not served", gvr)
	}
	return res.FieldManagers[""].Types()
}

// Convert converts obj from one resource's version to another. obj is shared and not modified.
func (r *Reader) Convert(
	ctx context.Context, obj runtime.Object, from, to schema.GroupVersionResource,
) (runtime.Object, error) {
	source := r.find(from)
	target := r.find(to)
	o, ok := obj.(kind.Object)
	if source == nil || target == nil || !ok {
		return nil, fmt.Errorf("convert a %T from %s to %s: not served", obj, from, to)
	}
	if from == to {
		return obj, nil
	}
	if target.Custom != nil && target.Custom.Convert != nil {
		return target.Custom.Convert(ctx, o)
	}
	if source.View != nil {
		o = source.View.ToStored(o)
	}
	if target.View != nil {
		o = target.View.ToServed(o)
	}
	return o, nil
}

// Resolve returns host:port of an endpoint for a Service's port.
func (r *Reader) Resolve(ctx context.Context, namespace, name string, port int32) (string, error) {
	return backend.Resolve(ctx, r, namespace, name, port)
}
