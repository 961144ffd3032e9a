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

// driven has a CSI driver mount a volume, and gives it to the pod's fsGroup where the driver leaves that to the kubelet.
func (m *Manager) driven(ctx context.Context, root *inroot.Dir, in Input, v *corev1.Volume, r csi.Request) (time.Time, error) {
	if m.CSI == nil {
		return time.Time{}, errors.New("volumes of CSI drivers are not supported by this node")
	}
	got, err := m.CSI.SetUp(ctx, r)
	if err != nil || !got.OwnedByGroup {
		return got.Refresh, err
	}
	return got.Refresh, m.local(root, in, v, got.Path, got.Fresh)
}

// publishedAt is where the volume of a driver lies in a pod; name is the PersistentVolume's, or the pod's for one that it describes.
func (m *Manager) publishedAt(p *corev1.Pod, name string) string {
	return filepath.Join(m.dir, csi.PublishedAt(string(p.UID), name))
}

// giveBack has the drivers unmount the volumes of a pod, before their directories are removed. No container has them any more, and no
// subPath may.
func (m *Manager) giveBack(ctx context.Context, uid string) error {
	if m.CSI == nil {
		return nil
	}
	if m.tmpfs {
		if err := unmountBelow(filepath.Join(m.PodDir(uid), "volume-subpaths")); err != nil {
			return err
		}
	}
	return m.CSI.TearDown(ctx, uid)
}
