// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Replaced counts, by reason, the pods that a pass over a set deletes in order to replace them.
type Replaced struct {
	outdated, failed, succeeded int
}

// Count adds a pod that is deleted; outdated reports that it was made from an earlier template.
func (r *Replaced) Count(pod *corev1.Pod, outdated bool) {
	switch {
	case pod.Status.Phase == corev1.PodFailed:
		r.failed++
	case pod.Status.Phase == corev1.PodSucceeded:
		r.succeeded++
	case outdated:
		r.outdated++
	}
}

// String says why pods are replaced, for event.Reconcile; empty: none is.
func (r *Replaced) String() string {
	var parts []string
	for _, reason := range []struct {
		count int
		what  string
	}{{r.outdated, "of an earlier template"}, {r.failed, "failed"}, {r.succeeded, "succeeded"}} {
		if reason.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", reason.count, reason.what))
		}
	}
	return strings.Join(parts, ", ")
}
