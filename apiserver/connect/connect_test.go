// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestCompleted: the error names what was asked for, in kubectl's words.
func TestCompleted(t *testing.T) {
	for what, want := range map[string]string{
		"exec":   "cannot exec into a container in a completed pod; current phase is Succeeded",
		"attach": "cannot attach a container in a completed pod; current phase is Succeeded",
	} {
		if got := completed(what, corev1.PodSucceeded).Error(); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
}
