// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestDevices: a claim's block device reaches the container as it is named there; what is no block device, or is used
// as a directory, is refused.
func TestDevices(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: device nodes")
	}
	disk := filepath.Join(t.TempDir(), "disk")
	if err := unix.Mknod(disk, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
		t.Fatal(err)
	}
	block := corev1.PersistentVolumeBlock
	src := &bound{}
	m := manager(t, &src.objects)
	m.sources = src
	for _, c := range []struct {
		name   string
		source corev1.PersistentVolumeSource
		mode   *corev1.PersistentVolumeMode
		mount  bool
		ro     bool
		access string
		err    string
	}{
		{
			name:   "device",
			source: localAt(disk),
			mode:   &block,
			access: "mrw",
		},
		{
			name:   "read only",
			source: localAt(disk),
			mode:   &block,
			ro:     true,
			access: "mr",
		},
		{
			name:   "mounted",
			source: localAt(disk),
			mode:   &block,
			mount:  true,
			err:    "volume d has volumeMode Block, but is specified in volumeMounts",
		},
		{
			name:   "directory",
			source: localAt(t.TempDir()),
			err:    "volume d has volumeMode Filesystem, but is specified in volumeDevices",
		},
		{
			name:   "no device",
			source: localAt("/dev/null"),
			mode:   &block,
			err:    "MapVolume.MapBlockVolume failed for volume \"d\" : /dev/null is not a block device",
		},
		{
			name:   "missing",
			source: localAt(disk + "2"),
			mode:   &block,
			err:    "no such file or directory",
		},
		{
			name:   "other type",
			source: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: disk}},
			mode:   &block,
			err:    "of the type local alone",
		},
	} {
		src.pv = &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: c.source,
			VolumeMode:             c.mode,
		}}
		v := claimOf("d")
		v.PersistentVolumeClaim.ReadOnly = c.ro
		pod := volumes(v)
		container := &pod.Spec.Containers[0]
		container.VolumeDevices = []corev1.VolumeDevice{{Name: "d", DevicePath: "/dev/xvda"}}
		if c.mount {
			container.VolumeDevices = nil
			container.VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: "/d"}}
		}
		_, err := m.SetUp(t.Context(), Input{Pod: pod})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, want %q", c.name, err, c.err)
			}
			if e, ok := errors.AsType[*Error](err); !ok || e.Device != strings.Contains(err.Error(), "MapVolume") {
				t.Errorf("%s: %+v does not know whether it is about a device", c.name, e)
			}
			continue
		}
		got, devErr := m.Devices(t.Context(), pod, container)
		if err != nil || devErr != nil || len(got) != 1 || got[0].GetHostPath() != disk ||
			got[0].GetContainerPath() != "/dev/xvda" || got[0].GetPermissions() != c.access {
			t.Errorf("%s: got %v, %v, %v; want %s as /dev/xvda with %s", c.name, got, err, devErr, disk, c.access)
		}
		if err := m.TearDown(t.Context(), string(pod.UID)); err != nil {
			t.Fatal(err)
		}
	}
}

func localAt(path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
}
