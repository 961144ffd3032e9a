// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// labelValues is the requirement that a node label has one of some values.
type labelValues struct {
	*state.LabelColumn
	ids []int32 // the values' IDs in the column
}

func (l labelValues) at(place int) bool { return slices.Contains(l.ids, l.ValueIDs[place]) }

// maxListed bounds the values that are compared one by one for each node.
const maxListed = 16

func newLabelValues(s *state.Snapshot, key string, values []string) labelValues {
	l := labelValues{LabelColumn: s.Column(key)}
	for _, v := range values {
		if id := l.IDOf(v); id >= 0 {
			l.ids = append(l.ids, id)
		}
	}
	return l
}

// volumeNodes is the set of nodes that match a volume's node affinity, by their places in a snapshot.
type volumeNodes struct {
	everywhere bool
	terms      [][]labelValues  // alternatives; all requirements of a term must match
	selection  *state.Selection // used instead of terms unless onlyInOperators; else nil
}

// nodesOfVolume is volume.CheckNodeAffinity for all nodes.
func nodesOfVolume(snapshot *state.Snapshot, v *corev1.PersistentVolume) volumeNodes {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return volumeNodes{everywhere: true}
	}
	required := v.Spec.NodeAffinity.Required
	if !onlyInOperators(required) {
		return volumeNodes{selection: snapshot.SelectNodes("volume|"+required.String(), state.NodeNames, func(
			n *state.NodeInfo,
		) bool {
			return volume.CheckNodeAffinity(v, n.Node.Labels) == nil
		})}
	}
	var r volumeNodes
	for i := range required.NodeSelectorTerms {
		var term []labelValues
		for _, e := range required.NodeSelectorTerms[i].MatchExpressions {
			term = append(term, newLabelValues(snapshot, e.Key, e.Values))
		}
		if len(term) > 0 { // an empty term matches nothing
			r.terms = append(r.terms, term)
		}
	}
	return r
}

// onlyInOperators reports whether all requirements are labels with the operator In and few values, as for nearly all
// volumes.
func onlyInOperators(s *corev1.NodeSelector) bool {
	return !slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchFields) > 0 || slices.ContainsFunc(t.MatchExpressions, func(
			e corev1.NodeSelectorRequirement,
		) bool {
			return e.Operator != corev1.NodeSelectorOpIn || len(e.Values) > maxListed
		})
	})
}

func (r *volumeNodes) at(place int) bool {
	switch {
	case r.everywhere:
		return true
	case r.selection != nil:
		return r.selection.Included[r.selection.ValueIDs[place]] > 0
	}
	for _, term := range r.terms {
		all := true
		for i := range term {
			all = all && term[i].at(place)
		}
		if all {
			return true
		}
	}
	return false
}

// refuse sets st for the nodes without a status in out that the volume cannot be on.
func (r *volumeNodes) refuse(out []*framework.Status, st *framework.Status) {
	if r.everywhere {
		return
	}
	for place := range out {
		if out[place] == nil && !r.at(place) {
			out[place] = st
		}
	}
}

// refuseAll sets st for all nodes without a status in out.
func refuseAll(out []*framework.Status, st *framework.Status) {
	for place := range out {
		if out[place] == nil {
			out[place] = st
		}
	}
}
