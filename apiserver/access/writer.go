// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
)

// Writer writes the server's own objects without the pipeline and without admission, as Kubernetes writes the usage of
// quotas and the last use of tokens. It is safe for concurrent use.
type Writer struct{ served *resources.Served }

// NewWriter returns a writer of the objects of all served resources.
func NewWriter(served *resources.Served) *Writer { return &Writer{served} }

// GuaranteedUpdate updates an object without the pipeline: f gets its current state, which is shared, and returns the
// new one; the same one means no write. f is called again after a conflict.
func (w *Writer) GuaranteedUpdate(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
	f func(current runtime.Object) (runtime.Object, error),
) error {
	s, err := w.served.Storage(gvr)
	if err != nil {
		return err
	}
	_, _, _, err = s.Update(ctx, namespace, name, false, objects.Replace(func(
		_ context.Context, current kind.Object,
	) (kind.Object, error) {
		next, err := f(current)
		if err != nil {
			return nil, err
		}
		obj, ok := next.(kind.Object)
		if !ok {
			return nil, fmt.Errorf("amend %s %s/%s: a %T is no object", gvr.Resource, namespace, name, next)
		}
		return obj, nil
	}))
	return err
}
