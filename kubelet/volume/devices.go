// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/inroot"
)

func isBlock(pv *corev1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// checkVolumeMode refuses a Block volume in volumeMounts, and a Filesystem volume in volumeDevices.
func checkVolumeMode(p *corev1.Pod, volume *corev1.Volume, pv *corev1.PersistentVolume) error {
	var mounted, device bool
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			mounted = mounted || slices.ContainsFunc(list[i].VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.Name == volume.Name
			})
			device = device || slices.ContainsFunc(list[i].VolumeDevices, func(d corev1.VolumeDevice) bool {
				return d.Name == volume.Name
			})
		}
	}
	switch {
	case isBlock(pv) && mounted:
		return fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", volume.Name)
	case !isBlock(pv) && device:
		return fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", volume.Name)
	}
	return nil
}

// checkDevice checks that the block device of a claim exists.
func (m *Manager) checkDevice(root *inroot.Dir, v *corev1.Volume, pv *corev1.PersistentVolume, begun string) error {
	path, err := devicePath(pv)
	if err != nil {
		return &Error{Volume: v.Name, Device: true, Err: err}
	}
	if err := root.MkdirAll(begun, 0o750); err != nil {
		return err
	}
	return keepPath(root, begun, path)
}

// devicePath returns the path of a volume's block device.
func devicePath(pv *corev1.PersistentVolume) (string, error) {
	if pv.Spec.Local == nil {
		return "", fmt.Errorf("persistent volume %s: volumeMode Block is supported by this node for volumes of the "+
			"type local alone", pv.Name)
	}
	i, err := os.Stat(pv.Spec.Local.Path)
	if err != nil {
		return "", err
	}
	if !isBlockDevice(i) {
		return "", fmt.Errorf("%s is not a block device", pv.Spec.Local.Path)
	}
	return pv.Spec.Local.Path, nil
}

// Devices returns a container's block devices for CRI.
func (m *Manager) Devices(ctx context.Context, p *corev1.Pod, c *corev1.Container) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for i := range c.VolumeDevices {
		volumeDevice := &c.VolumeDevices[i]
		volume := find(p, volumeDevice.Name)
		if volume == nil || volume.PersistentVolumeClaim == nil && volume.Ephemeral == nil {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", volumeDevice.Name, c.Name)
		}
		_, pv, err := m.claimOf(ctx, p, volume)
		if err != nil {
			return nil, err
		}
		path, err := devicePath(pv)
		if err != nil {
			return nil, err
		}
		access := "mrw"
		if readOnly(volume) {
			access = "mr"
		}
		out = append(out, &runtimeapi.Device{
			HostPath:      path,
			ContainerPath: volumeDevice.DevicePath,
			Permissions:   access,
		})
	}
	return out, nil
}
