// SPDX-License-Identifier: Apache-2.0

package tainteviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// toleration says whether a pod with these tolerations must leave a node with these NoExecute taints, and how long it may
// still stay. A taint that nothing tolerates: not at all. Otherwise, of the first toleration that matches each taint the
// shortest tolerationSeconds counts; where none has a limit, the pod need not leave.
func toleration(taints []corev1.Taint, tolerations []corev1.Toleration) (stays time.Duration, must bool) {
	for i := range taints {
		tolerated := false
		for j := range tolerations {
			t := &tolerations[j]
			if !matches(t, &taints[i]) {
				continue
			}
			tolerated = true
			if t.TolerationSeconds != nil {
				d := max(0, time.Duration(*t.TolerationSeconds)*time.Second)
				if !must || d < stays {
					stays, must = d, true
				}
			}
			break
		}
		if !tolerated {
			return 0, true
		}
	}
	return stays, must
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
