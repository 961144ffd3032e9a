// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// VolumeRestrictions keeps a pod off nodes where a disk it wants is in use in a way that cannot be shared.
type VolumeRestrictions struct{}

// Name is the plugin's.
func (VolumeRestrictions) Name() string { return "VolumeRestrictions" }

var diskTaken = framework.Refuse("VolumeRestrictions", framework.Unschedulable, "node(s) had no available disk")

// Prepare has nothing to say about pods without such disks.
func (VolumeRestrictions) Prepare(pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	disks := exclusive(pod.Pod)
	if len(disks) == 0 {
		return nil, nil
	}
	return freeDisks(disks), nil
}

// exclusive lists the pod's volumes that not every pod may share.
func exclusive(pod *corev1.Pod) []*corev1.Volume {
	var out []*corev1.Volume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil {
			out = append(out, v)
		}
	}
	return out
}

type freeDisks []*corev1.Volume

func (want freeDisks) Filter(n *state.NodeInfo) *framework.Status {
	for _, p := range n.Pods {
		for i := range p.Pod.Spec.Volumes {
			if slices.ContainsFunc(want, func(v *corev1.Volume) bool { return clash(v, &p.Pod.Spec.Volumes[i]) }) {
				return diskTaken
			}
		}
	}
	return nil
}

// clash reports whether both volumes are the same disk and one of them may write to it. An EBS volume is never shared.
func clash(a, b *corev1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		x, y := a.GCEPersistentDisk, b.GCEPersistentDisk
		return x.PDName == y.PDName && (!x.ReadOnly || !y.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		return a.ISCSI.IQN == b.ISCSI.IQN && (!a.ISCSI.ReadOnly || !b.ISCSI.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		x, y := a.RBD, b.RBD
		overlap := slices.ContainsFunc(x.CephMonitors, func(m string) bool { return slices.Contains(y.CephMonitors, m) })
		return overlap && x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && (!x.ReadOnly || !y.ReadOnly)
	default:
		return false
	}
}

// Hints names what may help: a new node, or a pod that gives a wanted disk back.
func (VolumeRestrictions) Hints() []framework.Hint {
	return []framework.Hint{{On: framework.NodeAdd | framework.Self}, {On: framework.PodDelete, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
		return freeDisks(exclusive(pod.Pod)).Filter(&state.NodeInfo{Pods: []*state.PodInfo{{Pod: e.OldPod}}}) != nil
	}}}
}
