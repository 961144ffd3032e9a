// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestReplaced: a pod that has ended is replaced for that reason, whatever its template.
func TestReplaced(t *testing.T) {
	var none Replaced
	none.Count(&corev1.Pod{}, false) // a surplus pod is not replaced
	if got := none.String(); got != "" {
		t.Errorf("without a reason: %q", got)
	}
	var r Replaced
	for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
		r.Count(pod, true)
	}
	if got := r.String(); got != "2 of an earlier template, 1 failed, 1 succeeded" {
		t.Errorf("got %q", got)
	}
}
