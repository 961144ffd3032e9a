// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestDevicesOfPrivilegedContainers: a privileged container has the host's devices, and those that it names by the
// names that it gives them.
func TestDevicesOfPrivilegedContainers(t *testing.T) {
	asked := []*runtimeapi.Device{
		{HostPath: "/dev/zero", ContainerPath: "/dev/mine", Permissions: "mr"},
		{HostPath: "/dev/zero", ContainerPath: "/dev/full", Permissions: "mr"}, // in the place of the host's
	}
	got, err := devices(asked, true)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	minor := map[string]int64{}
	for _, d := range got {
		count[d.Path]++
		minor[d.Path] = d.Minor
	}
	if count["/dev/null"] != 1 || count["/dev/mine"] != 1 || count["/dev/full"] != 1 || minor["/dev/mine"] != 5 ||
		minor["/dev/full"] != 5 {
		t.Errorf("devices: got %v, want null, and mine and full to be zero", got)
	}
	if got, err := devices(asked, false); err != nil || len(got) != 2 || got[0].Path != "/dev/mine" ||
		got[0].Access != "mr" {
		t.Errorf("not privileged: got %v, %v, want those asked for alone", got, err)
	}
}
