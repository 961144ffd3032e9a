// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// labelIn is a node label that has to have one of some values.
type labelIn struct {
	*state.Column
	ids []int32 // the values' numbers
}

func (l labelIn) at(place int) bool { return slices.Contains(l.ids, l.Of[place]) }

// maxListed bounds the values that are compared one by one.
const maxListed = 16

func in(s *state.Snapshot, key string, values []string) labelIn {
	l := labelIn{Column: s.Column(key)}
	for _, v := range values {
		if id := l.Number(v); id >= 0 {
			l.ids = append(l.ids, id)
		}
	}
	return l
}

// reach tells which nodes can have a volume, by their places in a snapshot.
type reach struct {
	everywhere bool
	terms      [][]labelIn   // one of them, and all of it
	choice     *state.Choice // in place of terms where they are not simple; nil: they are
}

// reachOf is what volume.CheckNodeAffinity says of all nodes.
func reachOf(s *state.Snapshot, v *corev1.PersistentVolume) reach {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return reach{everywhere: true}
	}
	required := v.Spec.NodeAffinity.Required
	if !simple(required) {
		return reach{choice: s.Choose("volume|"+required.String(), state.Names, func(n *state.NodeInfo) bool {
			return volume.CheckNodeAffinity(v, n.Node.Labels) == nil
		})}
	}
	var r reach
	for i := range required.NodeSelectorTerms {
		var term []labelIn
		for _, e := range required.NodeSelectorTerms[i].MatchExpressions {
			term = append(term, in(s, e.Key, e.Values))
		}
		if len(term) > 0 { // an empty term matches nothing
			r.terms = append(r.terms, term)
		}
	}
	return r
}

// simple reports whether a selector only asks for labels that have one of a few values, as nearly all volumes do.
func simple(s *corev1.NodeSelector) bool {
	return !slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchFields) > 0 || slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Operator != corev1.NodeSelectorOpIn || len(e.Values) > maxListed
		})
	})
}

func (r *reach) at(place int) bool {
	switch {
	case r.everywhere:
		return true
	case r.choice != nil:
		return r.choice.In[r.choice.Of[place]] > 0
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

// refuse sets st where out is nil and the volume cannot be.
func (r *reach) refuse(out []*framework.Status, st *framework.Status) {
	if r.everywhere {
		return
	}
	for place := range out {
		if out[place] == nil && !r.at(place) {
			out[place] = st
		}
	}
}

// refuseAll sets st where out is nil.
func refuseAll(out []*framework.Status, st *framework.Status) {
	for place := range out {
		if out[place] == nil {
			out[place] = st
		}
	}
}
