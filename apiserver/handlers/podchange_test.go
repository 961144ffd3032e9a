// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/pipeline"
)

// TestNoteChange: the mark of a write of pods/status describes the change, and is empty if nothing relevant changed.
func TestNoteChange(t *testing.T) {
	waits := func(reason string) corev1.PodStatus {
		return corev1.PodStatus{
			Phase: corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}},
			},
		}
	}
	ready := func(phase corev1.PodPhase, status corev1.ConditionStatus, reason string) corev1.PodStatus {
		return corev1.PodStatus{
			Phase:      phase,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status, Reason: reason}},
		}
	}
	for name, c := range map[string]struct {
		before, now corev1.PodStatus
		want        string
	}{
		"phase": {
			corev1.PodStatus{Phase: "Pending"}, corev1.PodStatus{Phase: "Running"}, "phase Pending -> Running",
		},
		"its reason": {
			corev1.PodStatus{Phase: "Running"},
			corev1.PodStatus{Phase: "Failed", Reason: "DeadlineExceeded"},
			"phase Running -> Failed (DeadlineExceeded)",
		},
		"its words": {
			corev1.PodStatus{Phase: "Running"},
			corev1.PodStatus{
				Phase:   "Failed",
				Reason:  "Evicted",
				Message: "The node was low on resource: memory.",
			},
			"phase Running -> Failed (Evicted: The node was low on resource: memory.)",
		},
		"many words": {
			corev1.PodStatus{Phase: "Running"},
			corev1.PodStatus{
				Phase:   "Failed",
				Reason:  "R",
				Message: strings.Repeat("é", 1000),
			},
			"phase Running -> Failed (R: " + strings.Repeat("é", 126) + "...)",
		},
		"a container": {waits("ContainerCreating"), waits("ErrImagePull"), "c waits: ErrImagePull"},
		"as usual":    {corev1.PodStatus{Phase: "Pending"}, waits("ContainerCreating"), ""},
		"no news":     {waits("ErrImagePull"), waits("ErrImagePull"), ""},
		"no node": {
			corev1.PodStatus{},
			corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"},
			}},
			"not scheduled: Unschedulable",
		},
		"nominated": {
			corev1.PodStatus{}, corev1.PodStatus{NominatedNodeName: "n"}, "nominated to n, which is prepared for it",
		},
		"preempted": {
			corev1.PodStatus{},
			corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"},
			}},
			"is to leave: PreemptionByScheduler",
		},
		"node lost": {ready("Running", "True", ""), ready("Running", "False", ""), "is not Ready any more"},
		"probe failed": {ready("Running", "True", ""), ready("Running", "False",
			"ContainersNotReady"), "is not Ready any more: ContainersNotReady"},
		"ready again": {ready("Running", "False", "ContainersNotReady"), ready("Running", "True", ""), "is Ready"},
		"it runs": {
			ready("Pending", "False", "ContainersNotReady"), ready("Running", "True", ""), "phase Pending -> Running",
		},
	} {
		rq := &pipeline.Request{}
		recordChange(rq, "status", &corev1.Pod{Status: c.now}, &corev1.Pod{Status: c.before})
		if rq.Mark.Change != c.want {
			t.Errorf("%s: got %q, want %q", name, rq.Mark.Change, c.want)
		}
	}
}
