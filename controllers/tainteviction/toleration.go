// SPDX-License-Identifier: Apache-2.0

package tainteviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
)

// toleration returns whether a pod with these tolerations must leave a node with these NoExecute taints, because of
// which taint, and how long it may stay. With an untolerated taint it must leave at once. Otherwise the shortest
// tolerationSeconds of the first matching toleration of each taint counts; without a limit the pod stays: because is
// nil.
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
					stays = d
					because = &taints[i]
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

// maxSeconds means forever; larger values would overflow a time.Duration.
const maxSeconds = int64(100 * 365 * 24 * time.Hour / time.Second)

// maxNewTaintAge is the maximum age of a taint that counts as added when it was first seen: its own time is rounded
// down to seconds.
const maxNewTaintAge = 2 * time.Second

// tolerationStartOf is when a pod's toleration time started, as recorded in the objects, so that a restarted controller
// does not start again: the taint's timeAdded, or the pod's start if it is later.
func tolerationStartOf(p *corev1.Pod, taint *corev1.Taint, now time.Time) time.Time {
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
	if at.Add(maxNewTaintAge).After(now) {
		return now
	}
	return at
}

// matches reports whether t tolerates the taint: an empty effect or key matches all, Exists any value.
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
