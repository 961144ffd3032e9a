// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// changing is a scale that others write: the first conflicts updates find another version.
type changing struct {
	dynamic.ResourceInterface
	conflicts, updates int
	stored             *unstructured.Unstructured
}

func (c *changing) Get(
	context.Context, string, metav1.GetOptions, ...string,
) (*unstructured.Unstructured, error) {
	return c.stored.DeepCopy(), nil
}

func (c *changing) Update(
	_ context.Context, obj *unstructured.Unstructured, _ metav1.UpdateOptions, _ ...string,
) (*unstructured.Unstructured, error) {
	if c.updates++; c.updates <= c.conflicts {
		c.stored.SetResourceVersion(c.stored.GetResourceVersion() + "0")
	}
	if obj.GetResourceVersion() != c.stored.GetResourceVersion() {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, obj.GetName(), nil)
	}
	c.stored = obj.DeepCopy()
	return obj, nil
}

// A target that somebody else has changed meanwhile is scaled all the same; one that never stands still is a conflict.
func TestSetWhileOthersWrite(t *testing.T) {
	for _, tt := range []struct {
		conflicts int
		scaled    bool
	}{{0, true}, {1, true}, {3, true}, {100, false}} {
		c := &changing{conflicts: tt.conflicts, stored: &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": "web", "resourceVersion": "1"},
			"spec":     map[string]any{"replicas": int64(1)},
		}}}
		read := &targetScale{client: c, obj: c.stored.DeepCopy()}
		err := scaleClient{}.Set(t.Context(), read, 5)
		n, _, found := unstructured.NestedInt64(c.stored.Object, "spec", "replicas")
		if scaled := err == nil && n == 5; scaled != tt.scaled || found != nil || !tt.scaled && !apierrors.IsConflict(err) {
			t.Errorf("%d conflicts: got %d replicas, %v; want scaled %v", tt.conflicts, n, err, tt.scaled)
		}
	}
}
