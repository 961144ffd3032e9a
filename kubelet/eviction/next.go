// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Figure is how much of a signal there is.
type Figure struct{ Available, Capacity *resource.Quantity }

// Figures are what was measured. A signal that could not be measured is missing: its thresholds are not met.
type Figures map[Signal]Figure

// State is what must be remembered from one look at the node to the next. The zero State is that of a node seen for the first time.
type State struct {
	met   []Threshold                            // that drove evictions and are not resolved
	since map[Threshold]time.Time                // met since
	seen  map[corev1.NodeConditionType]time.Time // last met
}

// Outcome is what follows from a look at the node.
type Outcome struct {
	// Conditions that hold now, sorted.
	Conditions []corev1.NodeConditionType
	// Starved are the thresholds that call for reclaiming, the most urgent first: memory before all, hard ones before soft ones.
	Starved []Threshold
}

// Next judges figures. It does not change s.
func (s State) Next(thresholds []Threshold, f Figures, transition time.Duration, now time.Time) (State, Outcome) {
	met := metBy(thresholds, f, false)
	for _, t := range metBy(s.met, f, true) { // not yet as much more as was asked for
		if !slices.Contains(met, t) {
			met = append(met, t)
		}
	}
	next := State{since: map[Threshold]time.Time{}, seen: maps.Clone(s.seen)}
	if next.seen == nil {
		next.seen = map[corev1.NodeConditionType]time.Time{}
	}
	var out Outcome
	for _, t := range met {
		at, ok := s.since[t]
		if !ok {
			at = now
		}
		next.since[t] = at
		next.seen[signals[t.Signal].condition] = now
		if now.Sub(at) >= t.Grace {
			out.Starved = append(out.Starved, t)
		}
	}
	for c, at := range next.seen {
		if now.Sub(at) >= transition {
			delete(next.seen, c)
			continue
		}
		out.Conditions = append(out.Conditions, c)
	}
	slices.Sort(out.Conditions)
	next.met = slices.Clone(out.Starved)
	slices.SortStableFunc(out.Starved, func(a, b Threshold) int { return cmp.Or(urgency(a)-urgency(b), cmp.Compare(a.Grace, b.Grace)) })
	return next, out
}

// urgency puts memory first.
func urgency(t Threshold) int {
	if t.Signal == MemoryAvailable {
		return 0
	}
	return 1
}

// metBy returns the thresholds that are met; with reclaim, also those that are resolved but not by their minimum.
func metBy(thresholds []Threshold, f Figures, reclaim bool) []Threshold {
	var out []Threshold
	for _, t := range thresholds {
		seen, ok := f[t.Signal]
		if !ok {
			continue
		}
		q := t.Value.Of(seen.Capacity)
		if reclaim && t.Reclaim != (Value{}) {
			q.Add(*t.Reclaim.Of(seen.Capacity))
		}
		if q.Cmp(*seen.Available) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// Refuse says why a node with these conditions does not take a pod; empty: it does. Critical pods are always taken. Under pressure of
// memory alone so are pods that ask for some, and those that tolerate it.
func Refuse(conditions []corev1.NodeConditionType, p *corev1.Pod, critical bool, qos corev1.PodQOSClass) string {
	if len(conditions) == 0 || critical {
		return ""
	}
	if len(conditions) == 1 && conditions[0] == corev1.NodeMemoryPressure {
		if qos != corev1.PodQOSBestEffort {
			return ""
		}
		taint := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		for i := range p.Spec.Tolerations {
			if tolerates(&p.Spec.Tolerations[i], &taint) {
				return ""
			}
		}
	}
	names := make([]string, len(conditions))
	for i, c := range conditions {
		names[i] = string(c)
	}
	return "The node had condition: [" + strings.Join(names, " ") + "]. "
}

// tolerates is Toleration.ToleratesTaint for a taint without a value.
func tolerates(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case "", corev1.TolerationOpEqual:
		return t.Value == taint.Value && t.Key != ""
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
	}
	return false
}
