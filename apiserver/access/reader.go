// SPDX-License-Identifier: Apache-2.0

// Package access reads and writes the server's own objects without the pipeline: Reader for authorization, admission
// and token verification, Writer for the few writes that Kubernetes makes without admission, Source for agents in this
// process. It decides nothing, except that a Source calls the authorizer as a request does.
package access

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
)

// Reader reads the server's own objects without the pipeline, for admission, authorization and token verification. The
// results are shared and never modified (P4). It is safe for concurrent use.
type Reader struct{ served *resources.Served }

// NewReader returns a reader of the objects of all served resources.
func NewReader(served *resources.Served) *Reader { return &Reader{served} }

// Get returns an object from the cache, which may be slightly old. An object missing there is read consistently.
func (r *Reader) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (runtime.Object, error) {
	found, err := r.Cached(ctx, gvr, namespace, name)
	if apierrors.IsNotFound(err) {
		return r.GetLatest(ctx, gvr, namespace, name)
	}
	return found, err
}

// Cached returns an object from the cache, which may be slightly old: an object missing there is not found. It costs
// the store nothing, so requests may ask for what is seldom there.
func (r *Reader) Cached(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (runtime.Object, error) {
	s, err := r.served.Storage(gvr)
	if err != nil {
		return nil, err
	}
	e, err := s.Get(ctx, namespace, name, "0")
	if err != nil {
		return nil, err
	}
	return e.Object, nil
}

// GetLatest returns the stored state of an object.
func (r *Reader) GetLatest(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (runtime.Object, error) {
	s, err := r.served.Storage(gvr)
	if err != nil {
		return nil, err
	}
	e, err := s.Get(ctx, namespace, name, "")
	if err != nil {
		return nil, err
	}
	return e.Object, nil
}

// List returns the objects of the namespace ("": all) from the cache.
func (r *Reader) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string,
) ([]runtime.Object, error) {
	s, err := r.served.Storage(gvr)
	if err != nil {
		return nil, err
	}
	var out []runtime.Object
	err = s.Walk(ctx, namespace, func(e *objects.Entry) bool {
		out = append(out, e.Object)
		return true
	})
	return out, err
}

// Select lists the objects that match; a nil selector matches everything.
func (r *Reader) Select(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector, f fields.Selector,
) ([]runtime.Object, error) {
	s, err := r.served.Storage(gvr)
	if err != nil {
		return nil, err
	}
	if selector == nil {
		selector = labels.Everything()
	}
	if f == nil {
		f = fields.Everything()
	}
	page, err := s.List(ctx, objects.ListQuery{
		Namespace:       namespace,
		Labels:          selector,
		Fields:          f,
		ResourceVersion: "0",
	})
	if err != nil {
		return nil, err
	}
	out, _ := runtimeObjects(page)
	return out, nil
}

// PodsOn returns the pods bound to a node.
func (r *Reader) PodsOn(node string) []*corev1.Pod {
	list, err := r.Select(context.Background(), podsGVR, "", nil, fields.OneTermEqualSelector("spec.nodeName", node))
	if err != nil {
		return nil // the cache is not filled yet
	}
	pods := make([]*corev1.Pod, 0, len(list))
	for _, obj := range list {
		if p, ok := obj.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	}
	return pods
}

var podsGVR = corev1.SchemeGroupVersion.WithResource("pods")

// listOptions converts client options to a query, for Source.
func listOptions(namespace string, opts metav1.ListOptions) (objects.ListQuery, error) {
	query := objects.ListQuery{
		Namespace:         namespace,
		ResourceVersion:   opts.ResourceVersion,
		Match:             string(opts.ResourceVersionMatch),
		Limit:             opts.Limit,
		Continue:          opts.Continue,
		SendInitialEvents: opts.SendInitialEvents,
		Bookmarks:         opts.AllowWatchBookmarks,
	}
	var err error
	if query.Labels, err = labels.Parse(opts.LabelSelector); err != nil {
		return query, fmt.Errorf("label selector %q: %w", opts.LabelSelector, err)
	}
	if query.Fields, err = fields.ParseSelector(opts.FieldSelector); err != nil {
		return query, fmt.Errorf("field selector %q: %w", opts.FieldSelector, err)
	}
	return query, nil
}

func runtimeObjects(page *objects.List) ([]runtime.Object, string) {
	out := make([]runtime.Object, len(page.Items))
	for i, e := range page.Items {
		out[i] = e.Object
	}
	return out, strconv.FormatInt(page.Revision, 10)
}
