// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

const (
	well = corev1.ResourceHealthStatusHealthy
	ill  = corev1.ResourceHealthStatusUnhealthy
)

// TestHealth: devices are in order and have names of their own, messages are shortened, and of too many the ill ones
// are reported.
func TestHealth(t *testing.T) {
	long := strings.Repeat("é", 600)
	got := Health("claim:c", []DeviceHealth{
		{IDs: []string{"cdi", "d/p/2"}, Health: ill, Message: long},
		{IDs: []string{"cdi", "d/p/1"}, Health: well},
		{IDs: []string{"cdi", "d/p/1"}, Health: well},
		{
			IDs:    []string{strings.Repeat("x", 2000), "short"},
			Health: well,
		},
		{IDs: []string{""}, Health: well},
	})
	want := corev1.ResourceStatus{
		Name: "claim:c",
		Resources: []corev1.ResourceHealth{
			{ResourceID: "cdi", Health: ill, Message: new(strings.Repeat("é", 510) + "...")}, {
				ResourceID: "d/p/1",
				Health:     well,
			}, {ResourceID: "short", Health: well},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var many []DeviceHealth
	for i := range 2 * maxHealth {
		many = append(many, DeviceHealth{IDs: []string{fmt.Sprintf("%04d", i)}, Health: well})
	}
	many[2*maxHealth-1].Health = ill
	if got := Health("r", many).Resources; len(got) != maxHealth || got[maxHealth-1].Health != ill ||
		got[0].ResourceID != "0000" {
		t.Errorf("of many: %d, the last is %v", len(got), got[len(got)-1])
	}
}

// TestWithHealth: a new health replaces the earlier one, and the others stay.
func TestWithHealth(t *testing.T) {
	a := Health("a", nil)
	b := Health("b", nil)
	worse := Health("b", []DeviceHealth{{IDs: []string{"x"}, Health: ill}})
	before := []corev1.ResourceStatus{a, b}
	if diff := cmp.Diff([]corev1.ResourceStatus{a, worse}, MergeHealth(before, worse)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, MergeHealth(before)); diff != "" {
		t.Errorf("nothing is known (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.ResourceStatus{a, b}, before); diff != "" {
		t.Errorf("the list before was changed (-want +got):\n%s", diff)
	}
}
