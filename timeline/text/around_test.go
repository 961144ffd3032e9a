// SPDX-License-Identifier: Apache-2.0

package text

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/story"
)

// TestTrueReason: a pod that the scheduler does not see is not reported as "not tried yet".
func TestTrueReason(t *testing.T) {
	tests := map[string]struct {
		spec    corev1.PodSpec
		note    map[string]string
		why     story.Why
		gone    bool
		bad     string
		said    string // the message of its condition PodScheduled
		of      *Group
		foreign bool // the API server is another one
		want    string
	}{
		"other server": {
			spec:    corev1.PodSpec{NodeName: "n"},
			why:     story.Why{Partial: true},
			foreign: true,
			want:    "on n: the API server is not Keelson's and has no record of why",
		},
		"no group": {
			of:   &Group{Name: "g", Missing: true},
			want: "it waits for its pod group g, which does not exist",
		},
		"small group": {
			of:   &Group{Name: "g", Pods: 3, MinCount: 5},
			want: "waits for 2 more pods of group g (3 of 5)",
		},
		"one short": {
			of: &Group{Name: "g", Pods: 4, MinCount: 5},
			why: story.Why{
				Decision: &decisions.Attempt{},
			},
			want: "waits for 1 more pod of group g (4 of 5)",
		},
		"full group": {of: &Group{Name: "g", Pods: 5, MinCount: 5}, want: "the scheduler has not tried it yet"},
		"in a group": {
			why: story.Why{Decision: &decisions.Attempt{
				PodGroup: "g: 2 of 3 pods fit, 3 must",
			}},
			want: "   group g: 2 of 3 pods fit, 3 must\n",
		},
		"named node": {
			spec: corev1.PodSpec{NodeName: "n"},
			want: "on n: its spec.nodeName said so when it was made; no scheduler was asked",
		},
		"missing node": {
			spec: corev1.PodSpec{NodeName: "n"},
			gone: true,
			want: "no scheduler was asked; there is no node n, so nothing runs it, and the pod garbage collector " +
				"will delete it",
		},
		"static": {
			spec: corev1.PodSpec{NodeName: "n"},
			note: map[string]string{
				corev1.MirrorPodAnnotationKey: "x",
			},
			want: "a static pod, which its kubelet read from a file",
		},
		"by hand": {
			spec: corev1.PodSpec{NodeName: "n"},
			why: story.Why{
				BoundBy: "ann",
			},
			want: "on n: bound by ann, not by the scheduler",
		},
		"after a failure": {
			spec: corev1.PodSpec{NodeName: "n"},
			why: story.Why{
				BoundBy:  "ann",
				Decision: &decisions.Attempt{},
			},
			want: "on n: bound by ann",
		},
		"other scheduler": {
			spec: corev1.PodSpec{SchedulerName: "mine"},
			want: `waits for the scheduler "mine", which has not bound it`,
		},
		"its profile": {
			spec: corev1.PodSpec{SchedulerName: "packs"},
			why: story.Why{
				Since: t0,
				For:   2 * time.Second,
				Tries: 1,
				Next:  "a node changes",
				Decision: &decisions.Attempt{
					PodDecisionStatus: decisions.PodDecisionStatus{
						Nodes: 1,
					},
				},
			},
			want: "Pending for 2 s, 1 try, next when a node changes\n",
		},
		"in its queue": {
			spec: corev1.PodSpec{SchedulerName: "packs"},
			why: story.Why{
				Since: t0,
			},
			want: "Pending: the scheduler has not tried it yet\n",
		},
		"its words": {
			spec: corev1.PodSpec{SchedulerName: "mine"},
			said: "0/1 nodes are available: too small.",
			want: `Pending: the scheduler "mine" found no node for it: 0/1 nodes are available: too small` + "\n",
		},
		"gates": {
			spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "a"}, {Name: "b"}}},
			want: "held back by its scheduling gates (a, b)",
		},
		"no scheduler": {bad: "its lease has no holder", want: "the scheduler does not work: its lease has no holder"},
		"soon":         {want: "the scheduler has not tried it yet"},
		"its decision": {
			spec: corev1.PodSpec{NodeName: "n"},
			why: story.Why{Node: "n", BoundBy: story.SchedulerUser, Decision: &decisions.Attempt{
				PodDecisionStatus: decisions.PodDecisionStatus{
					Node:     "n",
					Nodes:    1,
					Feasible: 1,
				},
			}},
			want: "on n   chosen after",
		},
	}
	for name, tt := range tests {
		w := tt.why
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tt.note}, Spec: tt.spec}
		if tt.said != "" {
			p.Status.Conditions = []corev1.PodCondition{{
				Type:    corev1.PodScheduled,
				Status:  corev1.ConditionFalse,
				Reason:  corev1.PodReasonUnschedulable,
				Message: tt.said,
			}}
		}
		Explain(&w, &Around{
			Pod:       p,
			NodeGone:  tt.gone,
			Scheduler: tt.bad,
			Group:     tt.of,
			Foreign:   tt.foreign,
		})
		var b strings.Builder
		RenderWhy(&b, &w, false, 0)
		if !strings.Contains(b.String(), tt.want) {
			t.Errorf("%s: got %q, want %q in it", name, b.String(), tt.want)
		}
	}
}

// TestWaits: a story of a pod that is not Ready says what the pod waits for, in both forms.
func TestWaits(t *testing.T) {
	gated := corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/a"}}}
	short := &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Nodes:   3,
			Message: "0/3 nodes are available: 3 Insufficient cpu.",
		},
	}
	crashes := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
		{
			Name: "c",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason:  "CrashLoopBackOff",
				Message: "back-off 10s restarting failed container",
			}},
		},
	}}
	ready := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	onNode := corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}}
	for name, tt := range map[string]struct {
		spec   corev1.PodSpec
		status corev1.PodStatus
		why    story.Why
		gone   bool
		want   string
	}{
		"gates": {
			spec: gated,
			want: "held back by its scheduling gates (example.com/a); it is scheduled once spec.schedulingGates is " +
				"empty",
		},
		"other scheduler": {
			spec: corev1.PodSpec{SchedulerName: "mine"},
			want: `it waits for the scheduler "mine", which has not bound it; does one of that name run?`,
		},
		"its profile": {
			spec: corev1.PodSpec{SchedulerName: "packs"},
			why: story.Why{
				Since:    t0,
				Decision: short,
				Next:     "a node changes",
			},
			want: "0/3 nodes are available: 3 Insufficient cpu; it is tried again when a node changes",
		},
		"unschedulable": {
			why:  story.Why{Decision: short, Next: "a node changes"},
			want: "0/3 nodes are available: 3 Insufficient cpu; it is tried again when a node changes",
		},
		"missing node": {
			spec: corev1.PodSpec{NodeName: "n"},
			gone: true,
			want: "there is no node n, so nothing runs it",
		},
		"soon": {want: "the scheduler has not tried it yet"},
		"crashes": {
			spec:   onNode,
			status: crashes,
			want:   "container c waits: CrashLoopBackOff: back-off 10s restarting failed container",
		},
		"just bound": {spec: onNode, want: "the kubelet of its node n has not reported anything about it yet"},
		"failed":     {spec: onNode, status: corev1.PodStatus{Phase: corev1.PodFailed}},
		"ready": {spec: onNode, status: ready, why: story.Why{Node: "n", Decision: &decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Node: "n",
			},
		}}},
		"gone": {why: story.Why{Gone: true}},
	} {
		w := tt.why
		a := &Around{Pod: &corev1.Pod{Spec: tt.spec, Status: tt.status}, NodeGone: tt.gone}
		Explain(&w, a)
		it := story.Story{
			Namespace: "default",
			Name:      "p",
			Waits:     Waits(&w, a),
			Steps:     []story.Step{{Who: "apiserver", What: "POST pods", HandOff: story.HandRequest}},
		}
		var steps, lines strings.Builder
		RenderSteps(&steps, &it, false, 0)
		Render(&lines, &it, false, 0)
		flat := strings.Join(strings.Fields(steps.String()), " ")
		wantSteps := "not yet: " + tt.want + " accounted"
		wantLine := "   waits: " + tt.want + "\n"
		if tt.want == "" {
			wantSteps = "2-13 not yet accounted"
			wantLine = ""
		}
		if it.Waits != tt.want || !strings.Contains(flat, wantSteps) ||
			!strings.Contains(lines.String(), wantLine) ||
			tt.want == "" && strings.Contains(lines.String(), "waits") {
			t.Errorf("%s: got %q in\n%s\n%s; want %q", name, it.Waits, steps.String(), lines.String(), tt.want)
		}
	}
}

// TestGone: a deleted pod is not reported as Pending, and nothing as still to come.
func TestGone(t *testing.T) {
	for want, why := range map[string]story.Why{
		"it is gone; no scheduler had decided where it runs\n": {Gone: true},
		"it is gone; no node had taken it after 2 tries\n": {
			Gone:  true,
			Tries: 2,
			Next:  "a node changes",
			Decision: &decisions.Attempt{
				PodDecisionStatus: decisions.PodDecisionStatus{
					Nodes: 1,
				},
			},
		},
		"it is gone; it was on n   chosen after ": {
			Gone: true,
			Node: "n",
			Decision: &decisions.Attempt{
				PodDecisionStatus: decisions.PodDecisionStatus{
					Nodes:    1,
					Feasible: 1,
					Node:     "n",
				},
			},
		},
	} {
		var b strings.Builder
		RenderWhy(&b, &why, false, 0)
		if !strings.Contains(b.String(), want) {
			t.Errorf("got %q, want %q in it", b.String(), want)
		}
	}
}

// TestWhyEnded: what ended a pod is shown, the first cause first, and what the API says of a pod that is still
// there.
func TestWhyEnded(t *testing.T) {
	subject := event.Subject{
		Resource:  "pods",
		Namespace: "default",
		Name:      podName,
		UID:       podUID(journey()),
	}
	by := func(d event.Request) event.Event {
		d.Resource = "pods"
		return event.Event{
			Step:      event.StepRequest,
			Component: "apiserver",
			At:        at(60000),
			Subject:   subject,
			Detail:    &d,
		}
	}
	gone := by(event.Request{Verb: "DELETE", User: "system:node:node-1", Code: 200})
	for want, marks := range map[string][]event.Event{
		"   ended evicted by ann\n": {by(event.Request{
			Verb:        "POST",
			Subresource: "eviction",
			User:        "bob",
			Code:        429,
		}), by(event.Request{
			Verb:        "POST",
			Subresource: "eviction",
			User:        "ann",
			Code:        201,
		}), gone},
		"   ended deleted by ann\n": {by(event.Request{Verb: "DELETE", User: "ann", Code: 200}), gone},
		"   ended Evicted: too large (by far)\n": {by(event.Request{
			Verb:        "PATCH",
			Subresource: "status",
			User:        "system:node:node-1",
			Code:        200,
			Status: &event.StatusChange{
				From:    "Running",
				To:      "Failed",
				Reason:  "Evicted",
				Message: "too large (by far)",
			},
		}), gone},
	} {
		w, err := listening(append(journey(), marks...)).Why("default", podName)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		RenderWhy(&b, &w, false, 0)
		if !strings.Contains(b.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", b.String(), want)
		}
	}
	w := story.Why{Node: "n", Ended: "deleted by ann"}
	Explain(&w, &Around{Pod: &corev1.Pod{
		Spec: corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{
			Phase:   corev1.PodFailed,
			Reason:  "Evicted",
			Message: "so it is",
		},
	}})
	if w.Ended != "Evicted: so it is" {
		t.Errorf("of a pod that failed: got %q", w.Ended)
	}
}
