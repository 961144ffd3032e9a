// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestEventSource: the reporting controller and instance stand in for a source that is left out.
func TestEventSource(t *testing.T) {
	const sourceColumn = 5
	for want, event := range map[string]*corev1.Event{
		"kubelet, n1": {Source: corev1.EventSource{Component: "kubelet", Host: "n1"}, ReportingInstance: "other"},
		"sched, s-0":  {ReportingController: "sched", ReportingInstance: "s-0"},
		"sched":       {ReportingController: "sched"},
	} {
		if got := EventRow(event)[sourceColumn]; got != want {
			t.Errorf("source %q, want %q", got, want)
		}
	}
}
