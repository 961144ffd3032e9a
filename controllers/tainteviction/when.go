// SPDX-License-Identifier: Apache-2.0

package tainteviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
)

// toleration says whether a pod with these tolerations must leave a node with these NoExecute taints, because of which of them, and
// how long it may still stay. A taint that nothing tolerates: not at all. Otherwise, of the first toleration that matches each taint
// the shortest tolerationSeconds counts; where none has a limit, the pod need not leave: because is nil.
func toleration(taints []corev1.Taint, tolerations []corev1.Toleration) (stays time.Duration, because *corev1.Taint) {
	for i := range taints {
		tolerated := false
		for j := range tolerations {
			t := &tolerations[j]
			if !matches(t, &taints[i]) {
				continue
			}
			tolerated = true
			if t.TolerationSeconds != nil {
				d := time.Duration(max(0, min(*t.TolerationSeconds, maxSeconds))) * time.Second
				if because == nil || d < stays {
					stays, because = d, &taints[i]
				}
			}
			break
		}
		if !tolerated {
			return 0, &taints[i]
		}
	}
	return stays, because
}

// maxSeconds is a tolerationSeconds that never ends; more would not be a time.Duration.
const maxSeconds = int64(100 * 365 * 24 * time.Hour / time.Second)

// fresh is how old a taint may be and still count as added when it was first seen: its own time is in whole seconds, rounded down.
const fresh = 2 * time.Second

// began is when a pod's stay in spite of a taint began, as far as the objects tell: so that a controller that starts anew does not
// begin to count anew. The taint says when it was added, if it was this cluster's; a pod that came later began to stay then.
func began(p *corev1.Pod, taint *corev1.Taint, now time.Time) time.Time {
	if taint.TimeAdded == nil {
		return now
	}
	at := taint.TimeAdded.Time
	bound := p.CreationTimestamp.Time
	if c := podkind.Condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue {
		bound = c.LastTransitionTime.Time
	}
	if bound.After(at) {
		at = bound
	}
	if at.Add(fresh).After(now) {
		return now
	}
	return at
}

// matches reports whether t tolerates the taint: an empty effect or key matches all of them, Exists any value.
func matches(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		return t.Key != "" && t.Value == taint.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}
