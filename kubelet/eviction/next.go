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

// Observation is the measured value of a signal.
type Observation struct{ Available, Capacity *resource.Quantity }

// Observations are the measured signals. A signal that could not be measured is missing, and its thresholds are not
// met.
type Observations map[Signal]Observation

// State is kept from one check of the node to the next. The zero State is for the first check.
type State struct {
	unresolved []Threshold                            // those for which pods were evicted and that are not resolved
	since      map[Threshold]time.Time                // met since
	lastMet    map[corev1.NodeConditionType]time.Time // last met
}

// Outcome is the result of a check.
type Outcome struct {
	// Conditions are the node's pressure conditions, sorted.
	Conditions []corev1.NodeConditionType
	// Met are the thresholds whose grace period has passed, in this order: memory first, hard before soft.
	Met []Threshold
}

// Next evaluates observations. It does not modify s.
func (s State) Next(thresholds []Threshold, f Observations, transition time.Duration, now time.Time) (State, Outcome) {
	met := metThresholds(thresholds, f, false)
	for _, t := range metThresholds(s.unresolved, f, true) { // the minimum reclaim is not reached yet
		if !slices.Contains(met, t) {
			met = append(met, t)
		}
	}
	next := State{since: map[Threshold]time.Time{}, lastMet: maps.Clone(s.lastMet)}
	if next.lastMet == nil {
		next.lastMet = map[corev1.NodeConditionType]time.Time{}
	}
	var out Outcome
	for _, t := range met {
		at, ok := s.since[t]
		if !ok {
			at = now
		}
		next.since[t] = at
		next.lastMet[signals[t.Signal].condition] = now
		if now.Sub(at) >= t.Grace {
			out.Met = append(out.Met, t)
		}
	}
	for c, at := range next.lastMet {
		if now.Sub(at) >= transition {
			delete(next.lastMet, c)
			continue
		}
		out.Conditions = append(out.Conditions, c)
	}
	slices.Sort(out.Conditions)
	next.unresolved = slices.Clone(out.Met)
	slices.SortStableFunc(out.Met, func(a, b Threshold) int {
		return cmp.Or(urgency(a)-urgency(b), cmp.Compare(a.Grace, b.Grace))
	})
	return next, out
}

// urgency is a sort key: memory first.
func urgency(t Threshold) int {
	if t.Signal == MemoryAvailable {
		return 0
	}
	return 1
}

// metThresholds returns the thresholds that are met; with reclaim also those that are not exceeded by their minimum
// reclaim.
func metThresholds(thresholds []Threshold, f Observations, reclaim bool) []Threshold {
	var out []Threshold
	for _, t := range thresholds {
		seen, ok := f[t.Signal]
		if !ok {
			continue
		}
		q := t.Value.Resolve(seen.Capacity)
		if reclaim && t.Reclaim != (Value{}) {
			q.Add(*t.Reclaim.Resolve(seen.Capacity))
		}
		if q.Cmp(*seen.Available) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// Refuse says why a node with these conditions does not take a pod; empty: it does. Critical pods are always taken.
// If memory is the only pressure, pods that request memory or tolerate the condition are taken too.
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
