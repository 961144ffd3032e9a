// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
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

// current are the labels that took the place of old ones.
var current = map[string]string{
	corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
}

type zoned struct {
	snapshot *state.Snapshot
	want     []zoneWanted
}

type zoneWanted struct {
	label  string
	values []string
}

// PreFilter has nothing to say about pods whose volumes name no zone.
func (p VolumeZone) PreFilter(_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if !p.Storage.known() || len(pod.Uses) == 0 {
		return nil, nil
	}
	z := zoned{snapshot: s}
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
				z.want = append(z.want, zoneWanted{label, strings.Split(value, "__")})
			}
		}
	}
	if len(z.want) == 0 {
		return nil, nil
	}
	return z, nil
}

// Filter lets a node pass that says nothing of zones: it is a cluster without them.
func (z zoned) Filter(n *state.NodeInfo) *framework.Status {
	if !slices.ContainsFunc(zoneLabels, func(l string) bool { _, ok := n.Node.Labels[l]; return ok }) {
		return nil
	}
	for _, w := range z.want {
		value, ok := n.Node.Labels[w.label]
		if !ok {
			value, ok = n.Node.Labels[current[w.label]]
		}
		if !ok || !slices.Contains(w.values, value) {
			return otherZone
		}
	}
	return nil
}

// FilterAll is Filter of all nodes.
func (z zoned) FilterAll(out []*framework.Status) {
	columns := make([]*state.Column, len(zoneLabels))
	for i, label := range zoneLabels {
		columns[i] = z.snapshot.Column(label)
	}
	for _, w := range z.want {
		label := in(z.snapshot, w.label, w.values)
		instead := in(z.snapshot, cmp.Or(current[w.label], w.label), w.values)
		for place := range out {
			if out[place] != nil || label.at(place) || label.Of[place] < 0 && instead.at(place) {
				continue
			}
			if slices.ContainsFunc(columns, func(c *state.Column) bool { return c.Of[place] >= 0 }) {
				out[place] = otherZone
			}
		}
	}
}

// EventsToRegister names what may help.
func (VolumeZone) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{On: framework.NodeAdd | framework.NodeLabels | framework.Volumes | framework.Claims | framework.Self}}
}
