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

// setUpClaim sets up the volume of a bound claim: it checks the directory or device of a hostPath or local volume and
// applies the pod's fsGroup, or has a CSI driver mount the volume.
func (m *Manager) setUpClaim(
	ctx context.Context, root *inroot.Dir, in Input, volume *corev1.Volume,
) (time.Time, error) {
	var none time.Time
	claim, pv, err := m.claimOf(ctx, in.Pod, volume)
	if err != nil {
		return none, err
	}
	// While a claim is being deleted, only pods that already use the volume may use it.
	begun := begunAt(string(in.Pod.UID), volume)
	_, err = root.Lstat(begun)
	switch {
	case err == nil:
	case !errors.Is(err, unix.ENOENT):
		return none, err
	case claim.DeletionTimestamp != nil:
		return none, fmt.Errorf("can't start pod because PVC %s/%s is being deleted", claim.Namespace, claim.Name)
	}
	if err := checkVolumeMode(in.Pod, volume, pv); err != nil {
		return none, err
	}
	if isBlock(pv) {
		return none, m.checkDevice(root, volume, pv, begun)
	}
	if pv.Spec.CSI != nil {
		at, err := m.setUpCSI(ctx, root, in, volume, csi.Request{
			Pod:      in.Pod,
			Name:     volume.Name,
			Claim:    claim,
			PV:       pv,
			ReadOnly: readOnly(volume),
		})
		if err == nil {
			err = root.MkdirAll(begun, 0o750)
		}
		return at, err
	}
	if deviceOf(pv) != "" {
		return m.setUpFileSystem(ctx, root, in, volume, claim, pv, begun)
	}
	return none, m.setUpDirectory(root, in, volume, pv, begun)
}

// setUpDirectory sets up a volume that is a directory of the node.
func (m *Manager) setUpDirectory(
	root *inroot.Dir, in Input, volume *corev1.Volume, pv *corev1.PersistentVolume, begun string,
) error {
	path, err := m.pathOf(in.Pod, pv)
	if err != nil {
		return err
	}
	if localvolume.Is(pv) {
		err = m.local.Make(pv.Name)
	} else {
		err = checkDirectory(path)
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
	return m.setGroup(root, in, volume, path, false)
}

// claimOf returns the claim of a volume, and its PersistentVolume.
func (m *Manager) claimOf(
	ctx context.Context, p *corev1.Pod, v *corev1.Volume,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	claim, pv, err := m.sources.Claim(ctx, p.Namespace, podkind.ClaimName(p, v))
	if err == nil && v.Ephemeral != nil {
		err = ephemeral.VolumeIsForPod(p, claim)
	}
	return claim, pv, err
}

// pathOf returns the directory of a PersistentVolume in a pod.
func (m *Manager) pathOf(pod *corev1.Pod, pv *corev1.PersistentVolume) (string, error) {
	switch {
	case localvolume.Is(pv):
		if m.local == nil || !localvolume.On(pv, m.local.node) {
			return "", fmt.Errorf("persistent volume %s is on node %q", pv.Name, pv.Labels[localvolume.NodeLabel])
		}
		return m.local.Path(pv.Name), nil
	case pv.Spec.HostPath != nil:
		at := m.hostPath(pv.Spec.HostPath)
		return at, checkHostPath(pv.Spec.HostPath, at)
	case deviceOf(pv) != "":
		return m.deviceTarget(pod, pv), nil
	case pv.Spec.Local != nil:
		return pv.Spec.Local.Path, nil
	case pv.Spec.CSI != nil:
		return m.csiTarget(pod, pv.Name), nil
	}
	return "", fmt.Errorf("persistent volume %s: its type is not supported by this node", pv.Name)
}

// readOnly reports whether the volume source of a claim or an inline CSI volume is read-only.
func readOnly(v *corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly || v.CSI != nil &&
		v.CSI.ReadOnly != nil && *v.CSI.ReadOnly
}
