// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"maps"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// TestSliceFields: drivers list their slices by node, by driver and by pool.
func TestSliceFields(t *testing.T) {
	node := "n"
	resourceSlice := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{
		Driver:   "gpu.example.com",
		NodeName: &node,
		Pool:     resourcev1.ResourcePool{Name: "p"},
	}}
	resourceSlice.Name = "s"
	want := fields.Set{
		"metadata.name":  "s",
		"spec.driver":    "gpu.example.com",
		"spec.nodeName":  node,
		"spec.pool.name": "p",
	}
	if got := ResourceSlice().Fields(resourceSlice); !maps.Equal(got, want) {
		t.Errorf("selectable fields: got %v, want %v", got, want)
	}
}
