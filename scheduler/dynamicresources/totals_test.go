// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/apitest"
)

// TestTotals: the devices of a class are counted on the nodes that can use them, with those that are allocated.
func TestTotals(t *testing.T) {
	gpus := class("gpu", `device.attributes["`+driver+`"].kind == "gpu"`)
	gpus.Spec.ExtendedResourceName = new("example.com/gpu")
	everywhere := with(slice("", device("shared", "kind", "gpu")), func(s *resourcev1.ResourceSlice) {
		s.Name = "slice-all"
		s.Spec.NodeName = nil
		s.Spec.AllNodes = new(true)
	})
	taken := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "taken", UID: "taken", ResourceVersion: "1"},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Driver: driver, Pool: "a", Device: "one"},
			}},
		}},
	}
	world := newWorld(t, gpus, everywhere, taken,
		slice("a", device("one", "kind", "gpu"), device("two", "kind", "gpu"), device("nic", "kind", "nic")),
		slice("b", device("nic", "kind", "nic")))
	count := world.known.Count()
	if count("example.com/none") != nil {
		t.Error("a resource without a class is counted")
	}
	on := count("example.com/gpu")
	if on == nil {
		t.Fatal("the resource of a class is not counted")
	}
	for _, want := range []struct {
		node           string
		all, allocated int64
	}{
		{"a", 3, 1},
		{"b", 1, 0},
	} {
		all, allocated := on(apitest.Node(want.node))
		if all != want.all || allocated != want.allocated {
			t.Errorf("node %s: %d devices, %d of them allocated; want %d, %d", want.node, all, allocated, want.all,
				want.allocated)
		}
	}
}
