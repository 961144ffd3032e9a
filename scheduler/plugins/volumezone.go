// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// VolumeZone sends a pod to the zone and region that the labels of its volumes name.
type VolumeZone struct{ Storage *Storage }

// Name is the plugin's.
func (VolumeZone) Name() string { return "VolumeZone" }

var otherZone = framework.Refuse("VolumeZone", framework.Unresolvable, "node(s) had no available volume zone")

// zoneLabels are what volumes say of where they are.
var zoneLabels = []string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
}

type zoned []zoneWanted

type zoneWanted struct {
	label  string
	values []string
}

// PreFilter has nothing to say about pods whose volumes name no zone.
func (p VolumeZone) PreFilter(_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if !p.Storage.known() {
		return nil, nil
	}
	var want zoned
	for _, name := range podkind.Claims(pod.Pod) {
		claim := p.Storage.claim(pod.Pod.Namespace, name)
		if claim == nil || claim.Spec.VolumeName == "" {
			continue
		}
		v := p.Storage.volume(claim.Spec.VolumeName)
		if v == nil {
			continue
		}
		for _, label := range zoneLabels {
			if value, ok := v.Labels[label]; ok {
				want = append(want, zoneWanted{label, strings.Split(value, "__")})
			}
		}
	}
	if len(want) == 0 {
		return nil, nil
	}
	return want, nil
}

// Filter lets a node pass that says nothing of zones: it is a cluster without them.
func (z zoned) Filter(n *state.NodeInfo) *framework.Status {
	if !slices.ContainsFunc(zoneLabels, func(l string) bool { _, ok := n.Node.Labels[l]; return ok }) {
		return nil
	}
	for _, w := range z {
		if value, ok := n.Node.Labels[w.label]; !ok || !slices.Contains(w.values, value) {
			return otherZone
		}
	}
	return nil
}

// EventsToRegister names what may help.
func (VolumeZone) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{On: framework.NodeAdd | framework.NodeLabels | framework.Volumes | framework.Claims | framework.Self}}
}
