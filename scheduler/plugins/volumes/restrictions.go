// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podkind "keelson/api/core/pod"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Restrictions filters nodes where a pod uses one of the pod's disks in a way that cannot be shared. It refuses
// all nodes while another pod uses a ReadWriteOncePod claim of the pod.
type Restrictions struct{ Storage *Storage }

// Plugin returns the descriptor.
func (p Restrictions) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "VolumeRestrictions",
		PreFilter: p.PreFilter,
		Events:    p.events(),
	}
}

var diskTaken = framework.NewStatus("VolumeRestrictions", framework.Unschedulable, "node(s) had no available disk")

var claimTaken = framework.NewStatus("VolumeRestrictions", framework.Unschedulable,
	"node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")

// PreFilter returns nil for pods without such disks and claims.
func (p Restrictions) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if len(pod.Uses) == 0 {
		return framework.NodeFilter{}, nil
	}
	f := restrictionsFilter{disks: restrictedDisks(pod.Pod), users: p.users(pod.Pod, s), snapshot: s}
	if len(f.disks)+len(f.users) == 0 {
		return framework.NodeFilter{}, nil
	}
	return f.described(), nil
}

// users returns the pods that use a ReadWriteOncePod claim of the pod, with a description for Explain. As in
// Kubernetes, those on nodes that are gone do not count.
func (p Restrictions) users(pod *corev1.Pod, snapshot *state.Snapshot) map[types.UID]string {
	if !p.Storage.watching() {
		return nil
	}
	var out map[types.UID]string
	for _, name := range podkind.Claims(pod) {
		if c := p.Storage.claim(pod.Namespace, name); c == nil ||
			!slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) {
			continue
		}
		for other, node := range snapshot.Users(state.ClaimUse(pod.Namespace, name)) {
			if snapshot.Node(node) == nil {
				continue
			}
			if out == nil {
				out = map[types.UID]string{}
			}
			out[other.Pod.UID] = fmt.Sprintf("claim %s (ReadWriteOncePod) used by %s on %s", name, other.Key, node)
		}
	}
	return out
}

// restrictionsFilter has the disks that the pod cannot share, and the users of its ReadWriteOncePod claims on any node.
type restrictionsFilter struct {
	disks    disksFilter
	users    map[types.UID]string // description by pod
	snapshot *state.Snapshot
}

func (r restrictionsFilter) described() framework.NodeFilter {
	return framework.NodeFilter{Filter: r.Filter, FilterAll: r.FilterAll, Adjust: r.Adjust, Explain: r.Explain}
}

// Explain names the pod that uses the claim or disk.
func (r restrictionsFilter) Explain(
	_ *state.PodInfo, n *state.NodeInfo, _ *framework.Status,
) (short, hint string, distance float64) {
	if len(r.users) > 0 {
		return slices.Min(slices.Collect(maps.Values(r.users))), "", 1
	}
	if p, disk := r.disks.holder(n); p != nil {
		return fmt.Sprintf("disk %s used by %s", disk, p.Key), "", 1
	}
	return "", "", 1
}

func (r restrictionsFilter) Filter(n *state.NodeInfo) *framework.Status {
	if len(r.users) > 0 {
		return claimTaken
	}
	return r.disks.Filter(n)
}

// FilterAll is Filter for all nodes. It visits only nodes where a pod uses one of the disks.
func (r restrictionsFilter) FilterAll(out []*framework.Status) {
	if len(r.users) > 0 {
		refuseAll(out, claimTaken)
		return
	}
	for _, v := range r.disks {
		for _, node := range r.snapshot.Users(state.DiskUse(v)) {
			if place := r.snapshot.Place(node); place >= 0 && out[place] == nil {
				out[place] = r.Filter(r.snapshot.Nodes[place])
			}
		}
	}
}

// Adjust returns the filter without the removed pods. Filter itself checks the pods of a node.
func (r restrictionsFilter) Adjust(_ *state.NodeInfo, _, removed []*state.PodInfo) framework.NodeFilter {
	out := restrictionsFilter{disks: r.disks, users: maps.Clone(r.users), snapshot: r.snapshot}
	for _, p := range removed {
		delete(out.users, p.Pod.UID)
	}
	return out.described()
}

// restrictedDisks returns the pod's volumes that other pods may not always share.
func restrictedDisks(pod *corev1.Pod) []*corev1.Volume {
	var out []*corev1.Volume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if state.DiskUse(v) != "" {
			out = append(out, v)
		}
	}
	return out
}

type disksFilter []*corev1.Volume

func (want disksFilter) Filter(n *state.NodeInfo) *framework.Status {
	if p, _ := want.holder(n); p != nil {
		return diskTaken
	}
	return nil
}

// holder returns the pod on the node that uses one of the disks in conflict, and the disk's name; nil: none.
func (want disksFilter) holder(n *state.NodeInfo) (*state.PodInfo, string) {
	for _, p := range n.Pods {
		for i := range p.Pod.Spec.Volumes {
			if at := slices.IndexFunc(want, func(v *corev1.Volume) bool {
				return disksConflict(v, &p.Pod.Spec.Volumes[i])
			}); at >= 0 {
				return p, diskName(want[at])
			}
		}
	}
	return nil, ""
}

func diskName(volume *corev1.Volume) string {
	switch {
	case volume.GCEPersistentDisk != nil:
		return volume.GCEPersistentDisk.PDName
	case volume.AWSElasticBlockStore != nil:
		return volume.AWSElasticBlockStore.VolumeID
	case volume.ISCSI != nil:
		return volume.ISCSI.IQN
	case volume.RBD != nil:
		return volume.RBD.RBDImage
	}
	return volume.Name
}

// disksConflict reports whether both volumes are the same disk and one of them may write to it. An EBS volume is never
// shared.
func disksConflict(volume, b *corev1.Volume) bool {
	switch {
	case volume.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		x := volume.GCEPersistentDisk
		y := b.GCEPersistentDisk
		return x.PDName == y.PDName && (!x.ReadOnly || !y.ReadOnly)
	case volume.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return volume.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case volume.ISCSI != nil && b.ISCSI != nil:
		return volume.ISCSI.IQN == b.ISCSI.IQN && (!volume.ISCSI.ReadOnly || !b.ISCSI.ReadOnly)
	case volume.RBD != nil && b.RBD != nil:
		x := volume.RBD
		y := b.RBD
		overlap := slices.ContainsFunc(x.CephMonitors, func(m string) bool {
			return slices.Contains(y.CephMonitors, m)
		})
		return overlap && x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && (!x.ReadOnly || !y.ReadOnly)
	default:
		return false
	}
}

// events names what may help: a new node, or a deleted pod with one of the disks or claims.
func (Restrictions) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{Kinds: framework.NodeAdd | framework.UnscheduledPodUpdate}, {
		Kinds: framework.AssignedPodDelete,
		QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
			if disksFilter(restrictedDisks(pod.Pod)).Filter(
				&state.NodeInfo{Pods: []*state.PodInfo{{Pod: e.OldPod}}}) != nil {
				return true
			}
			mine := podkind.Claims(pod.Pod)
			return e.OldPod.Namespace == pod.Pod.Namespace &&
				slices.ContainsFunc(podkind.Claims(e.OldPod), func(c string) bool { return slices.Contains(mine, c) })
		},
	}}
}
