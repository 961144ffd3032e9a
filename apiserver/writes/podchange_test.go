// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/pipeline"
	"keelson/event"
)

// TestNoteChange: the mark of a write of pods/status has the change, and nothing if nothing relevant changed.
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
		want        *event.StatusChange
	}{
		"phase": {
			corev1.PodStatus{Phase: "Pending"}, corev1.PodStatus{Phase: "Running"}, &event.StatusChange{From: "Pending", To: "Running"},
		},
		"its reason": {
			corev1.PodStatus{Phase: "Running"},
			corev1.PodStatus{Phase: "Failed", Reason: "DeadlineExceeded"},
			&event.StatusChange{From: "Running", To: "Failed", Reason: "DeadlineExceeded"},
		},
		"its words": {
			corev1.PodStatus{Phase: "Running"},
			corev1.PodStatus{
				Phase:   "Failed",
				Reason:  "Evicted",
				Message: "The node was low on resource: memory.",
			},
			&event.StatusChange{From: "Running", To: "Failed", Reason: "Evicted", Message: "The node was low on resource: memory."},
		},
		"many words": {
			corev1.PodStatus{Phase: "Running"},
			corev1.PodStatus{
				Phase:   "Failed",
				Reason:  "R",
				Message: strings.Repeat("é", 1000),
			},
			&event.StatusChange{From: "Running", To: "Failed", Reason: "R", Message: strings.Repeat("é", 126) + "..."},
		},
		"a container": {waits("ContainerCreating"), waits("ErrImagePull"), &event.StatusChange{Waiting: []event.Waiting{{Container: "c", Reason: "ErrImagePull"}}}},
		"as usual":    {corev1.PodStatus{Phase: "Pending"}, waits("ContainerCreating"), nil},
		"no news":     {waits("ErrImagePull"), waits("ErrImagePull"), nil},
		"no node": {
			corev1.PodStatus{},
			corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"},
			}},
			&event.StatusChange{Unscheduled: "Unschedulable"},
		},
		"nominated": {
			corev1.PodStatus{}, corev1.PodStatus{NominatedNodeName: "n"}, &event.StatusChange{Nominated: "n"},
		},
		"preempted": {
			corev1.PodStatus{},
			corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"},
			}},
			&event.StatusChange{Disruption: "PreemptionByScheduler"},
		},
		"node lost": {ready("Running", "True", ""), ready("Running", "False", ""), &event.StatusChange{Ready: "False"}},
		"probe failed": {ready("Running", "True", ""), ready("Running", "False",
			"ContainersNotReady"), &event.StatusChange{Ready: "False", NotReady: "ContainersNotReady"}},
		"ready again": {ready("Running", "False", "ContainersNotReady"), ready("Running", "True", ""), &event.StatusChange{Ready: "True"}},
		"it runs": {
			ready("Pending", "False", "ContainersNotReady"), ready("Running", "True", ""),
			&event.StatusChange{From: "Pending", To: "Running"},
		},
	} {
		rq := &pipeline.Request{}
		recordChange(rq, "status", &corev1.Pod{Status: c.now}, &corev1.Pod{Status: c.before})
		if diff := cmp.Diff(c.want, rq.Mark.Status); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
