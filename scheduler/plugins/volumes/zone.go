// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Zone filters nodes outside the zone and region in the labels of the pod's volumes.
type Zone struct{ Storage *Storage }

// Plugin returns the descriptor.
func (p Zone) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "VolumeZone",
		PreFilter: p.PreFilter,
		Events:    p.events(),
	}
}

var otherZone = framework.NewStatus("VolumeZone", framework.Unresolvable, "node(s) had no available volume zone")

// zoneLabels are the labels of volumes that name a zone or region.
var zoneLabels = []string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion,
}

// gaLabels maps the beta labels to their GA labels.
var gaLabels = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
}

type zoneFilter struct {
	snapshot *state.Snapshot
	wanted   []wantedZone
}

type wantedZone struct {
	label  string
	values []string
}

// PreFilter returns nil if no volume of the pod has a zone label.
func (p Zone) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if !p.Storage.watching() || len(pod.Uses) == 0 {
		return framework.NodeFilter{}, nil
	}
	z := zoneFilter{snapshot: s}
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
				z.wanted = append(z.wanted, wantedZone{label, strings.Split(value, "__")})
			}
		}
	}
	if len(z.wanted) == 0 {
		return framework.NodeFilter{}, nil
	}
	return framework.NodeFilter{Filter: z.Filter, FilterAll: z.FilterAll}, nil
}

// Filter accepts nodes without any zone label, as in a cluster without zones.
func (z zoneFilter) Filter(n *state.NodeInfo) *framework.Status {
	if !slices.ContainsFunc(zoneLabels, func(l string) bool {
		_, ok := n.Node.Labels[l]
		return ok
	}) {
		return nil
	}
	for _, w := range z.wanted {
		value, ok := n.Node.Labels[w.label]
		if !ok {
			value, ok = n.Node.Labels[gaLabels[w.label]]
		}
		if !ok || !slices.Contains(w.values, value) {
			return otherZone
		}
	}
	return nil
}

// FilterAll is Filter for all nodes.
func (z zoneFilter) FilterAll(out []*framework.Status) {
	columns := make([]*state.LabelColumn, len(zoneLabels))
	for i, label := range zoneLabels {
		columns[i] = z.snapshot.Column(label)
	}
	for _, w := range z.wanted {
		label := newLabelValues(z.snapshot, w.label, w.values)
		instead := newLabelValues(z.snapshot, cmp.Or(gaLabels[w.label], w.label), w.values)
		for place := range out {
			if out[place] != nil || label.at(place) || label.ValueIDs[place] < 0 && instead.at(place) {
				continue
			}
			if slices.ContainsFunc(columns, func(c *state.LabelColumn) bool { return c.ValueIDs[place] >= 0 }) {
				out[place] = otherZone
			}
		}
	}
}

// events names what may help: a node, volume or claim.
func (Zone) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{
			Kinds: framework.NodeAdd | framework.NodeLabels | framework.Storage | framework.PersistentVolumeClaims |
				framework.UnscheduledPodUpdate,
		},
	}
}
