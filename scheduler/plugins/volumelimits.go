// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	podkind "keelson/api/core/pod"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeVolumeLimits keeps the volumes of a CSI driver on a node within the number that the driver says it can attach there.
type NodeVolumeLimits struct{ Storage *Storage }

// Name is the plugin's.
func (NodeVolumeLimits) Name() string { return "NodeVolumeLimits" }

var tooManyVolumes = framework.Refuse("NodeVolumeLimits", framework.Unschedulable, "node(s) exceed max volume count")

// csiVolume is a volume as its driver knows it.
type csiVolume struct{ driver, handle string }

type withinLimits struct {
	storage *Storage
	wanted  map[csiVolume]bool
}

// PreFilter has nothing to say about pods without volumes of CSI drivers.
func (p NodeVolumeLimits) PreFilter(_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if !p.Storage.known() {
		return nil, nil
	}
	wanted := map[csiVolume]bool{}
	p.Storage.attached(pod.Pod, wanted)
	if len(wanted) == 0 {
		return nil, nil
	}
	return withinLimits{p.Storage, wanted}, nil
}

// attached adds the volumes that a pod has of CSI drivers. A claim without one counts as a volume of its class's driver.
func (s *Storage) attached(p *corev1.Pod, into map[csiVolume]bool) {
	for _, name := range podkind.Claims(p) {
		claim := s.claim(p.Namespace, name)
		if claim == nil {
			continue
		}
		if claim.Spec.VolumeName == "" {
			if class := s.class(claim); class != nil {
				if _, err := s.drivers.Get(class.Provisioner); err == nil {
					into[csiVolume{class.Provisioner, "claim " + claimKey(claim)}] = true
				}
			}
			continue
		}
		if v := s.volume(claim.Spec.VolumeName); v != nil && v.Spec.CSI != nil {
			into[csiVolume{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle}] = true
		}
	}
}

// surelyWithin reports whether the limits hold even if every volume of every pod were one of the driver's own.
func (f withinLimits) surelyWithin(node *storagev1.CSINode, n *state.NodeInfo) bool {
	most := len(f.wanted)
	for _, p := range n.Pods {
		most += len(p.Pod.Spec.Volumes)
	}
	for i := range node.Spec.Drivers {
		if d := &node.Spec.Drivers[i]; d.Allocatable != nil && d.Allocatable.Count != nil && most > int(*d.Allocatable.Count) {
			return false
		}
	}
	return true
}

func (f withinLimits) Filter(n *state.NodeInfo) *framework.Status {
	node, err := f.storage.nodes.Get(n.Name)
	if err != nil {
		return nil //nolint:nilerr // no driver says anything of the node
	}
	if f.surelyWithin(node, n) {
		return nil
	}
	limits := map[string]int{}
	for i := range node.Spec.Drivers {
		if d := &node.Spec.Drivers[i]; d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = int(*d.Allocatable.Count)
		}
	}
	if len(limits) == 0 {
		return nil
	}
	all := map[csiVolume]bool{}
	for _, p := range n.Pods {
		f.storage.attached(p.Pod, all)
	}
	for v := range f.wanted {
		all[v] = true
	}
	used := map[string]int{}
	for v := range all {
		used[v.driver]++
	}
	for v := range f.wanted {
		if limit, ok := limits[v.driver]; ok && used[v.driver] > limit {
			return tooManyVolumes
		}
	}
	return nil
}

// EventsToRegister names what may help.
func (NodeVolumeLimits) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{On: framework.NodeAdd | framework.PodDelete | framework.Volumes | framework.Claims | framework.Self}}
}
