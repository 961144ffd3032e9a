// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	podkind "keelson/api/core/pod"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Limits keeps the volumes of a CSI driver on a node within the number that the driver says it can attach
// there. Volumes of the node's pods count, and others that are attached (VolumeAttachments). It keeps pods off nodes
// without a driver of theirs whose CSIDriver asks for that (preventPodSchedulingIfMissing).
type Limits struct{ Storage *Storage }

// Plugin returns the descriptor.
func (p Limits) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      volumeLimits,
		PreFilter: p.PreFilter,
		Events:    p.events(),
	}
}

const volumeLimits = "NodeVolumeLimits"

var tooManyVolumes = framework.NewStatus(volumeLimits, framework.Unschedulable, "node(s) exceed max volume count")

// csiVolume is a volume as its driver knows it.
type csiVolume struct{ driver, handle string }

func (v csiVolume) compare(o csiVolume) int {
	return cmp.Or(cmp.Compare(v.driver, o.driver), cmp.Compare(v.handle, o.handle))
}

type withinLimits struct {
	storage  *Storage
	snapshot *state.Snapshot
	wanted   map[csiVolume]bool
	// required are the drivers that a node must have, in order, and without what is said of one that does not.
	required []string
	without  []*framework.Status
}

// PreFilter returns nil for pods without volumes of CSI drivers.
func (p Limits) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if !p.Storage.watching() || len(pod.Uses) == 0 {
		return framework.NodeFilter{}, nil
	}
	found := inOrder(p.Storage.attached(pod.Pod, nil, nil))
	if len(found) == 0 {
		return framework.NodeFilter{}, nil
	}
	f := withinLimits{storage: p.Storage, snapshot: s, wanted: make(map[csiVolume]bool, len(found))}
	for _, v := range found {
		f.wanted[v] = true
		if d, err := p.Storage.drivers.Get(v.driver); err != nil || d.Spec.PreventPodSchedulingIfMissing == nil ||
			!*d.Spec.PreventPodSchedulingIfMissing ||
			slices.Contains(f.required, v.driver) {
			continue
		}
		f.required = append(f.required, v.driver)
		f.without = append(f.without, framework.NewStatus(volumeLimits, framework.Unschedulable,
			v.driver+" CSI driver is not installed on the node"))
	}
	return framework.NodeFilter{Filter: f.Filter, FilterAll: f.FilterAll}, nil
}

// attached appends the volumes that a pod has of CSI drivers. A claim without one, or whose volume is not there, counts
// as a volume of its class's driver. named, unless nil, is called with the names of the volumes.
func (s *Storage) attached(p *corev1.Pod, into []csiVolume, named func(volume string)) []csiVolume {
	for i := range p.Spec.Volumes {
		name := podkind.ClaimName(p, &p.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim := s.claim(p.Namespace, name)
		if claim == nil {
			continue
		}
		var v *corev1.PersistentVolume
		if claim.Spec.VolumeName != "" {
			v = s.volume(claim.Spec.VolumeName)
			if named != nil {
				named(claim.Spec.VolumeName)
			}
		}
		if v != nil {
			if v.Spec.CSI != nil {
				into = append(into, csiVolume{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle})
			}
		} else if class := s.class(claim); class != nil && class.Provisioner != volume.NotSupportedProvisioner {
			into = append(into, csiVolume{class.Provisioner, "claim " + claimKey(claim)})
		}
	}
	return into
}

// FilterAll is Filter for all nodes, by volumeCounts.
func (f withinLimits) FilterAll(out []*framework.Status) {
	volumeCounts := &f.storage.counts
	volumeCounts.mu.Lock()
	defer volumeCounts.mu.Unlock()
	volumeCounts.refresh(f.storage, f.snapshot, f.wanted, f.required)
	for i, driver := range f.required {
		for place, lacks := range volumeCounts.lacks[driver] {
			if lacks && out[place] == nil {
				out[place] = f.without[i]
			}
		}
	}
	volumeCounts.refuse(out, f.wanted, tooManyVolumes)
}

// Filter counts the volumes of the pods that info has, and what else is attached to it.
func (f withinLimits) Filter(info *state.NodeInfo) *framework.Status {
	for i, driver := range f.required {
		if !f.storage.installed(info.Name, driver) {
			return f.without[i]
		}
	}
	least := unlimited
	most := len(f.wanted)
	for v := range f.wanted {
		least = min(least, int(f.storage.limit(info.Name, v.driver)))
	}
	for _, p := range info.Pods {
		most += len(p.Uses)
	}
	if most += f.storage.attachmentsOf(info.Name); most <= least { // even if all are of one driver
		return nil
	}
	there := f.storage.ofPods(info.Pods, nil)
	used := map[string]int32{}
	more := map[string]int32{}
	for _, v := range there {
		used[v.driver]++
	}
	for _, v := range f.storage.attachedWithoutPod(info.Name, there, nil) {
		used[v.driver]++
	}
	for v := range f.wanted {
		if _, has := slices.BinarySearchFunc(there, v, csiVolume.compare); !has {
			more[v.driver]++
		}
	}
	for driver, m := range more {
		if used[driver]+m > f.storage.limit(info.Name, driver) {
			return tooManyVolumes
		}
	}
	return nil
}

// VolumeAttachments is the resource of VolumeAttachment objects.
var VolumeAttachments = storagev1.SchemeGroupVersion.WithResource("volumeattachments")

// events names what may help: a node, a deleted pod, a claim, a volume or CSINode, or a removed
// VolumeAttachment.
func (Limits) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{Kinds: framework.NodeAdd | framework.UnscheduledPodUpdate},
		{
			Kinds: framework.AssignedPodDelete,
			QueueingHintFn: func(_ *state.PodInfo, e *framework.Event) bool {
				return e.OldPod == nil || claims(e.OldPod)
			},
		},
		{
			Kinds: framework.PersistentVolumeClaims,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				return e.Claim == nil || usesClaim(pod, e.Claim)
			},
		},
		{
			Kinds: framework.Storage,
			QueueingHintFn: func(_ *state.PodInfo, e *framework.Event) bool {
				return attachesMore(e)
			},
		},
		{
			Kinds:          framework.Objects,
			Resource:       VolumeAttachments,
			QueueingHintFn: func(_ *state.PodInfo, e *framework.Event) bool { return e.NewObject == nil },
		},
	}
}

// claims reports whether a pod uses claims.
func claims(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return podkind.ClaimName(pod, &v) != "" })
}

func usesClaim(pod *state.PodInfo, claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(pod.Uses, state.ClaimUse(claim.Namespace, claim.Name))
}

// attachesMore reports whether, by a change of storage, a driver has come to a node or can attach more there, or what
// decides about drivers has changed.
func attachesMore(e *framework.Event) bool {
	old, _ := e.OldObject.(*storagev1.CSINode)
	now, isNode := e.NewObject.(*storagev1.CSINode)
	if !isNode || old == nil {
		_, volume := e.NewObject.(*corev1.PersistentVolume)
		_, capacity := e.NewObject.(*storagev1.CSIStorageCapacity)
		return !volume && !capacity
	}
	most := func(n *storagev1.CSINode, driver string) (count int64, there bool) {
		for i := range n.Spec.Drivers {
			if d := &n.Spec.Drivers[i]; d.Name == driver {
				if d.Allocatable == nil || d.Allocatable.Count == nil {
					return unlimited, true
				}
				return int64(*d.Allocatable.Count), true
			}
		}
		return unlimited, false
	}
	for _, n := range []*storagev1.CSINode{old, now} {
		for i := range n.Spec.Drivers {
			had, was := most(old, n.Spec.Drivers[i].Name)
			has, is := most(now, n.Spec.Drivers[i].Name)
			if has > had || is && !was {
				return true
			}
		}
	}
	return false
}
