// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/csi"
	"keelson/lib/inroot"
)

// setUpCSI makes a CSI driver mount a volume, and applies the pod's fsGroup if the driver leaves that to the kubelet.
func (m *Manager) setUpCSI(
	ctx context.Context, root *inroot.Dir, in Input, v *corev1.Volume, r csi.Request,
) (time.Time, error) {
	if m.csi == nil {
		return time.Time{}, errors.New("volumes of CSI drivers are not supported by this node")
	}
	got, err := m.csi.SetUp(ctx, r)
	if err != nil || !got.OwnedByGroup {
		return got.Refresh, err
	}
	return got.Refresh, m.setGroup(root, in, v, got.Path, got.Fresh)
}

// csiTarget returns the target path of a CSI volume in a pod. name is that of the PersistentVolume, or of the inline
// volume.
func (m *Manager) csiTarget(p *corev1.Pod, name string) string {
	return filepath.Join(m.dir, csi.PublishedAt(string(p.UID), name))
}

// tearDownCSI makes the drivers unmount a pod's volumes, before their directories are removed. All containers must have
// ended, and all subPath mounts must be unmounted.
func (m *Manager) tearDownCSI(ctx context.Context, uid string) error {
	if m.csi == nil {
		return nil
	}
	if m.tmpfs {
		if err := unmountBelow(filepath.Join(m.PodDir(uid), "volume-subpaths")); err != nil {
			return err
		}
	}
	return m.csi.TearDown(ctx, uid)
}
