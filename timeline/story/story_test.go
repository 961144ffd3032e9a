// SPDX-License-Identifier: Apache-2.0

package story

import (
	"testing"

	"keelson/event"
	"keelson/timeline/storytest"
)

// TestRecreated: a pod that replaces one of the same name has the later reconcile in its story.
func TestRecreated(t *testing.T) {
	reconcile := func(second int) event.Event {
		return event.Event{
			Step:    event.StepReconcile,
			At:      storytest.At(second * 1e6),
			Subject: storytest.Set,
			Detail:  &event.Reconcile{Creates: []string{storytest.PodName}},
		}
	}
	all := []event.Event{reconcile(1), reconcile(50), reconcile(70)}
	if got := reconcileOf(all, storytest.At(50_100_000), storytest.PodName, true); got == nil || !got.At.Equal(storytest.At(50_000_000)) {
		t.Errorf("got %v, want the one of 50 s", got)
	}
}
