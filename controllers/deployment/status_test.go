// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/framework"
)

// progress is a Progressing condition that was set an hour ago and last updated some time ago.
func progress(status corev1.ConditionStatus, reason string, ago time.Duration) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{
			Type:               appsv1.DeploymentProgressing,
			Status:             status,
			Reason:             reason,
			Message:            "previous message",
			LastUpdateTime:     metav1.NewTime(now.Add(-ago)),
			LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
		})
	}
}

// reached is what the Deployment's status said before.
func reached(replicas, updated, available int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Status.Replicas = replicas
		d.Status.UpdatedReplicas = updated
		d.Status.AvailableReplicas = available
		d.Status.ReadyReplicas = available
	}
}

func failing(message string) func(*appsv1.ReplicaSet) {
	return func(r *appsv1.ReplicaSet) {
		r.Status.Conditions = []appsv1.ReplicaSetCondition{{
			Type:    appsv1.ReplicaSetReplicaFailure,
			Status:  corev1.ConditionTrue,
			Reason:  "FailedCreate",
			Message: message,
		}}
	}
}

func TestConditions(t *testing.T) {
	available := "Available True MinimumReplicasAvailable: Deployment has minimum availability."
	unavailable := "Available False MinimumReplicasUnavailable: Deployment does not have minimum availability."
	is := func(f ...func(*appsv1.Deployment)) *appsv1.Deployment { return deploy(4, "1", "1", f...) }
	noDeadline := func(d *appsv1.Deployment) { *d.Spec.ProgressDeadlineSeconds = maxInt32 }
	for _, tt := range []struct {
		name      string
		d         *appsv1.Deployment
		old, cur  int32
		available int32                      // of the current set
		fails     []func(*appsv1.ReplicaSet) // old, current
		want      []string
		next      time.Duration
	}{
		{
			name:      "complete",
			d:         is(reached(4, 3, 3)),
			cur:       4,
			available: 4,
			want: []string{
				available, `Progressing True NewReplicaSetAvailable: ReplicaSet "web-v2" has successfully progressed.`,
			},
		},
		{
			name:      "first look at a set",
			d:         is(reached(4, 4, 2)),
			cur:       4,
			available: 2,
			want: []string{
				unavailable, `Progressing True FoundNewReplicaSet: Found new replica set "web-v2"`,
			},
			next: 601 * time.Second,
		},
		{
			name:      "a step forward",
			d:         is(reached(4, 0, 4), progress("True", newSetCreated, time.Minute)),
			old:       3,
			cur:       1,
			available: 0,
			want: []string{
				available, `Progressing True ReplicaSetUpdated: ReplicaSet "web-v2" is progressing.`,
			},
			next: 601 * time.Second,
		},
		{
			name:      "no step",
			d:         is(reached(4, 1, 3), progress("True", setUpdated, time.Minute)),
			old:       3,
			cur:       1,
			available: 0,
			want: []string{
				available, "Progressing True ReplicaSetUpdated: previous message",
			},
			next: 541 * time.Second,
		},
		{
			name:      "no step for too long",
			d:         is(reached(4, 1, 3), progress("True", setUpdated, 11*time.Minute)),
			old:       3,
			cur:       1,
			available: 0,
			want: []string{
				available, `Progressing False ProgressDeadlineExceeded: ReplicaSet "web-v2" has timed out progressing.`,
			},
		},
		{
			name:      "a step after all",
			d:         is(reached(4, 1, 3), progress("False", timedOut, time.Hour)),
			old:       3,
			cur:       1,
			available: 1,
			want: []string{
				available, `Progressing True ReplicaSetUpdated: ReplicaSet "web-v2" is progressing.`,
			},
			next: 601 * time.Second,
		},
		{
			name:      "losing pods later is no lack of progress",
			d:         is(reached(4, 4, 4), progress("True", newSetAvailable, time.Hour)),
			cur:       4,
			available: 1,
			want: []string{
				unavailable, "Progressing True NewReplicaSetAvailable: previous message",
			},
		},
		{
			name:      "paused",
			d:         is(reached(4, 1, 3), progress("True", setUpdated, time.Minute), pausedRollout),
			old:       3,
			cur:       1,
			available: 0,
			want: []string{
				available, "Progressing Unknown DeploymentPaused: Deployment is paused",
			},
		},
		{
			name:      "paused too late",
			d:         is(reached(4, 1, 3), progress("False", timedOut, time.Minute), pausedRollout),
			old:       3,
			cur:       1,
			available: 0,
			want: []string{
				available, "Progressing False ProgressDeadlineExceeded: previous message",
			},
		},
		{
			name:      "resumed",
			d:         is(reached(4, 1, 3), progress("Unknown", paused, time.Hour)),
			old:       3,
			cur:       1,
			available: 0,
			want: []string{
				available, "Progressing Unknown DeploymentResumed: Deployment is resumed",
			},
			next: 601 * time.Second,
		},
		{
			name:      "no deadline",
			d:         is(reached(4, 1, 3), progress("True", setUpdated, time.Hour), noDeadline),
			old:       3,
			cur:       1,
			available: 0,
			want:      []string{available},
		},
		{
			name:      "the current set's failure before the old one's",
			d:         is(reached(4, 1, 3), noDeadline),
			old:       3,
			cur:       1,
			available: 0,
			fails:     []func(*appsv1.ReplicaSet){failing("old"), failing("quota")},
			want:      []string{available, "ReplicaFailure True FailedCreate: quota"},
		},
		{
			name:      "an old set's failure",
			d:         is(reached(4, 1, 3), noDeadline),
			old:       3,
			cur:       1,
			available: 0,
			fails:     []func(*appsv1.ReplicaSet){failing("old"), func(*appsv1.ReplicaSet) {}},
			want:      []string{available, "ReplicaFailure True FailedCreate: old"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.fails == nil {
				tt.fails = []func(*appsv1.ReplicaSet){func(*appsv1.ReplicaSet) {}, func(*appsv1.ReplicaSet) {}}
			}
			sets := []*appsv1.ReplicaSet{rs(tt.d, "v1", tt.old, 1, tt.fails[0]), rs(tt.d, "v2", tt.cur, 2,
				availableOnly(tt.available), tt.fails[1])}
			s := snapshot{
				d:       tt.d,
				sets:    sets,
				now:     now,
				oldPods: func(types.UID) bool { return false },
			}
			p := decide(s)
			st, next := status(s, p, p.current, sets)
			var got []string
			for _, c := range st.Conditions {
				got = append(got, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if next != tt.next {
				t.Errorf("next look in %v, want %v", next, tt.next)
			}
			was := framework.ConditionOf(tt.d.Status.Conditions, appsv1.DeploymentProgressing)
			is := framework.ConditionOf(st.Conditions, appsv1.DeploymentProgressing)
			if was != nil && is != nil && (was.Status == is.Status) != was.LastTransitionTime.Equal(
				&is.LastTransitionTime) {
				t.Errorf("last transition: was %v at %v, is %v at %v", was.Status, was.LastTransitionTime, is.Status,
					is.LastTransitionTime)
			}
		})
	}
}

func TestTerminatingPodsAreCounted(t *testing.T) {
	d := deploy(4, "1", "1")
	one := int32(1)
	two := int32(2)
	a := rs(d, "v1", 2, 1)
	b := rs(d, "v2", 2, 2)
	a.Status.TerminatingReplicas = &one
	b.Status.TerminatingReplicas = &two
	if n := terminating([]*appsv1.ReplicaSet{a, b}); n == nil || *n != 3 {
		t.Errorf("got %v, want 3", n)
	}
	b.Status.TerminatingReplicas = nil // of a version that does not count them
	if n := terminating([]*appsv1.ReplicaSet{a, b}); n != nil {
		t.Errorf("got %d, want none", *n)
	}
}
