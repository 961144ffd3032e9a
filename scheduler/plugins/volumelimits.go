// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	corev1 "k8s.io/api/core/v1"

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
	storage  *Storage
	snapshot *state.Snapshot
	wanted   map[csiVolume]bool
}

// PreFilter has nothing to say about pods without volumes of CSI drivers.
func (p NodeVolumeLimits) PreFilter(_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if !p.Storage.known() || len(pod.Uses) == 0 {
		return nil, nil
	}
	found := p.Storage.attached(pod.Pod, nil, nil)
	if len(found) == 0 {
		return nil, nil
	}
	f := withinLimits{p.Storage, s, make(map[csiVolume]bool, len(found))}
	for _, v := range found {
		f.wanted[v] = true
	}
	return f, nil
}

// attached appends the volumes that a pod has of CSI drivers. A claim without one counts as a volume of its class's driver. named, unless nil,
// is told the names of the volumes.
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
		if claim.Spec.VolumeName == "" {
			if class := s.class(claim); class != nil {
				if _, err := s.drivers.Get(class.Provisioner); err == nil {
					into = append(into, csiVolume{class.Provisioner, "claim " + claimKey(claim)})
				}
			}
			continue
		}
		v := s.volume(claim.Spec.VolumeName)
		if named != nil {
			named(claim.Spec.VolumeName)
		}
		if v != nil && v.Spec.CSI != nil {
			into = append(into, csiVolume{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle})
		}
	}
	return into
}

// FilterAll is Filter of all nodes, from counts that are kept up to date.
func (f withinLimits) FilterAll(out []*framework.Status) {
	c := &f.storage.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(f.storage, f.snapshot, f.wanted)
	c.refuse(out, f.wanted, tooManyVolumes)
}

// Filter counts the volumes of the pods that n has.
func (f withinLimits) Filter(n *state.NodeInfo) *framework.Status {
	if _, err := f.storage.nodes.Get(n.Name); err != nil {
		return nil //nolint:nilerr // no driver says anything of the node
	}
	most, least := int32(len(f.wanted)), int32(unlimited) //nolint:gosec // a pod has fewer volumes
	for v := range f.wanted {
		least = min(least, f.storage.limit(n.Name, v.driver))
	}
	for _, p := range n.Pods {
		most += int32(len(p.Uses)) //nolint:gosec // a pod has fewer volumes
	}
	if most <= least { // even if all are of one driver
		return nil
	}
	there := map[csiVolume]bool{}
	var all []csiVolume
	for _, p := range n.Pods {
		all = f.storage.attached(p.Pod, all[:0], nil)
		for _, v := range all {
			there[v] = true
		}
	}
	used, more := map[string]int32{}, map[string]int32{}
	for v := range there {
		used[v.driver]++
	}
	for v := range f.wanted {
		if !there[v] {
			more[v.driver]++
		}
	}
	for driver, m := range more {
		if used[driver]+m > f.storage.limit(n.Name, driver) {
			return tooManyVolumes
		}
	}
	return nil
}

// EventsToRegister names what may help.
func (NodeVolumeLimits) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{On: framework.NodeAdd | framework.PodDelete | framework.Volumes | framework.Claims | framework.Self}}
}
