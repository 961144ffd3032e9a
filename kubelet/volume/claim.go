// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"keelson/api/core/localvolume"
	podkind "keelson/api/core/pod"
	"keelson/kubelet/csi"
	"keelson/lib/inroot"
)

// claim looks whether the directory behind a claim is there, and gives a local volume to the pod's fsGroup. A volume of a CSI driver is
// mounted.
func (m *Manager) claim(ctx context.Context, root *inroot.Dir, in Input, v *corev1.Volume) (time.Time, error) {
	var none time.Time
	claim, pv, err := m.claimed(ctx, in.Pod, v)
	if err != nil {
		return none, err
	}
	// A pod that has the volume keeps it while the claim is being deleted; no other pod gets it then.
	begun := begunAt(string(in.Pod.UID), v)
	_, err = root.Lstat(begun)
	switch {
	case err == nil:
	case !errors.Is(err, unix.ENOENT):
		return none, err
	case claim.DeletionTimestamp != nil:
		return none, fmt.Errorf("can't start pod because PVC %s/%s is being deleted", claim.Namespace, claim.Name)
	}
	if err := usedAsItIs(in.Pod, v, pv); err != nil {
		return none, err
	}
	if isBlock(pv) {
		return none, m.device(root, v, pv, begun)
	}
	if pv.Spec.CSI != nil {
		at, err := m.driven(ctx, root, in, v, csi.Request{Pod: in.Pod, Name: v.Name, Claim: claim, PV: pv, ReadOnly: readOnly(v)})
		if err == nil {
			err = root.MkdirAll(begun, 0o750)
		}
		return at, err
	}
	return none, m.directory(root, in, v, pv, begun)
}

// directory looks after a volume that is a directory of the node.
func (m *Manager) directory(root *inroot.Dir, in Input, v *corev1.Volume, pv *corev1.PersistentVolume, begun string) error {
	path, err := m.pathOf(in.Pod, pv)
	if err != nil {
		return err
	}
	if localvolume.Is(pv) {
		err = m.Local.Make(pv.Name)
	} else {
		err = exists(path)
	}
	if err != nil {
		return err
	}
	if err := root.MkdirAll(begun, 0o750); err != nil || pv.Spec.Local == nil {
		return err
	}
	if err := keepPath(root, begun, path); err != nil {
		return err
	}
	return m.local(root, in, v, path, false)
}

// claimed is the claim of a volume, and what it is bound to.
func (m *Manager) claimed(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	claim, pv, err := m.sources.Claim(ctx, p.Namespace, podkind.ClaimName(p, v))
	if err == nil && v.Ephemeral != nil {
		err = ephemeral.VolumeIsForPod(p, claim)
	}
	return claim, pv, err
}

// pathOf is the directory of a pod's volume.
func (m *Manager) pathOf(p *corev1.Pod, pv *corev1.PersistentVolume) (string, error) {
	switch {
	case localvolume.Is(pv):
		if m.Local == nil || !localvolume.On(pv, m.Local.node) {
			return "", fmt.Errorf("persistent volume %s is on node %q", pv.Name, pv.Labels[localvolume.NodeLabel])
		}
		return m.Local.Path(pv.Name), nil
	case pv.Spec.HostPath != nil:
		at := m.hostPath(pv.Spec.HostPath)
		return at, checkHostPath(pv.Spec.HostPath, at)
	case pv.Spec.Local != nil:
		return pv.Spec.Local.Path, nil
	case pv.Spec.CSI != nil:
		return m.publishedAt(p, pv.Name), nil
	}
	return "", fmt.Errorf("persistent volume %s: its type is not supported by this node", pv.Name)
}

// readOnly tells whether no container may write to a claim's volume, or to one of a CSI driver.
func readOnly(v *corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly || v.CSI != nil && v.CSI.ReadOnly != nil && *v.CSI.ReadOnly
}
