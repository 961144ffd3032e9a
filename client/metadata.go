// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// MetadataOf lists and watches the objects of any resource, in all namespaces, for who needs no more than their
// metadata: they are metav1.Objects, of which no one may ask the type. In process they are the server's own; of a
// resource that the server does not store itself, and from another process, they are PartialObjectMetadata.
func (c *Client) MetadataOf(gvr schema.GroupVersionResource) *cache.ListWatch {
	remote := c.Metadata.Resource(gvr)
	all := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return remote.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return remote.Watch(ctx, o)
		},
	}
	if c.source != nil {
		return firstOf(listWatch(c.source, Scope{}, gvr), all)
	}
	return all
}

// firstOf asks second for what first does not find.
func firstOf(first, second *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := first.ListWithContext(ctx, o)
			if apierrors.IsNotFound(err) {
				return second.ListWithContext(ctx, o)
			}
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := first.WatchWithContext(ctx, o)
			if apierrors.IsNotFound(err) {
				return second.WatchWithContext(ctx, o)
			}
			return w, err
		},
	}
}
