// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"keelson/api/kind"
	"keelson/apiserver/backend"
)

// Equivalents lists the other resources with the same objects as gvr: other versions, and events in their two groups.
func (r *Reader) Equivalents(gvr schema.GroupVersionResource) []schema.GroupVersionResource {
	return r.served.Equivalents(gvr)
}

// Kind returns the kind of gvr.
func (r *Reader) Kind(gvr schema.GroupVersionResource) (schema.GroupVersionKind, bool) {
	res := r.served.Find(gvr)
	if res == nil {
		return schema.GroupVersionKind{}, false
	}
	return res.GVK(), true
}

// Describe returns the kind.Kind of gvr, or nil.
func (r *Reader) Describe(gvr schema.GroupVersionResource) *kind.Kind {
	if res := r.served.Find(gvr); res != nil {
		return res.Kind
	}
	return nil
}

// ResourceOf returns the resource of a kind.
func (r *Reader) ResourceOf(gvk schema.GroupVersionKind) (gvr schema.GroupVersionResource, namespaced, ok bool) {
	for _, res := range r.served.All() {
		if res.GVK() == gvk {
			return res.GVR(), res.Namespaced, true
		}
	}
	return gvr, false, false
}

// Types returns the type converter for objects of gvr.
func (r *Reader) Types(gvr schema.GroupVersionResource) (managedfields.TypeConverter, error) {
	res := r.served.Find(gvr)
	if res == nil || res.FieldManagers[""] == nil {
		return nil, fmt.Errorf("merge %s: not served", gvr)
	}
	return res.FieldManagers[""].Types()
}

// Convert converts obj from one resource's version to another. obj is shared and not modified.
func (r *Reader) Convert(
	ctx context.Context, obj runtime.Object, from, to schema.GroupVersionResource,
) (runtime.Object, error) {
	source := r.served.Find(from)
	target := r.served.Find(to)
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
