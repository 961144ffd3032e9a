// SPDX-License-Identifier: Apache-2.0

package container

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/pods"
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

// TestImageVolumes: the volumes of an image are directories of the container's own root file system, and no link leads
// out of it.
func TestImageVolumes(t *testing.T) {
	rootfs := t.TempDir()
	outside := t.TempDir()
	for link, to := range map[string]string{"inner": "/new", "link": outside} {
		if err := os.Symlink(to, filepath.Join(rootfs, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(rootfs, "new"), 0o750); err != nil {
		t.Fatal(err)
	}
	cfg := &runtimeapi.ContainerConfig{Mounts: []*runtimeapi.Mount{{ContainerPath: "/own/", HostPath: "/x"}}}
	names := map[string]struct{}{
		"/new/deep": {}, "plain": {}, "/own": {}, "/": {}, "/proc/x": {}, "/etc/hosts": {}, "/link/in": {},
		"/inner/x": {},
	}
	got, err := mountVolumes(&pods.SandboxRecord{}, rootfs, cfg, names)
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, m := range got.GetMounts() {
		at = append(at, m.GetContainerPath())
		if m.GetContainerPath() == "/own/" {
			continue
		}
		if !strings.HasPrefix(m.GetHostPath(), rootfs+"/") || m.GetReadonly() {
			t.Errorf("%s: got %v, want a writable directory in the root file system", m.GetContainerPath(), m)
		}
	}
	if want := []string{"/inner/x", "/new/deep", "/plain", "/own/"}; !slices.Equal(at, want) {
		t.Errorf("mounts: got %q, want %q", at, want)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside of the root file system: %v, %v", left, err)
	}
	if err := os.WriteFile(filepath.Join(rootfs, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := mountVolumes(&pods.SandboxRecord{}, rootfs, cfg, map[string]struct{}{"/file": {}}); err == nil {
		t.Error("a volume at a file was accepted")
	}
}
