// SPDX-License-Identifier: Apache-2.0

package text

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/story"
)

// TestTriedAgain: what a kubelet retries until it succeeds is shown once, with its reason and the number of tries.
func TestTriedAgain(t *testing.T) {
	marks := []event.Event{{
		Step:      event.StepRequest,
		Component: "apiserver",
		At:        at(0),
		Took:      us(100),
		Subject:   pod,
		Detail: &event.Request{
			Verb:     "POST",
			Resource: "pods",
			User:     "u",
			Code:     201,
		},
	}}
	for i := range 5 {
		from := 1000 + 100*i
		marks = append(marks,
			event.Event{
				Step:      event.StepImage,
				Component: "kubelet",
				At:        at(from),
				Subject:   pod,
				Detail:    &event.Image{Image: "app", Present: true, Done: true},
			},
			event.Event{
				Step:      event.StepContainerCreated,
				Component: "kubelet",
				At:        at(from + 10),
				Took:      us(10 + i),
				Subject:   pod,
				Err:       `configmap "missing" not found`,
				Detail:    &event.Container{Name: "c"},
			},
		)
	}
	s, err := listening(marks).Story(pod.Namespace, pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	want := `image app present (5 times); creating c failed: configmap "missing" not found (5 times)`
	if got := s.Steps[len(s.Steps)-1].What; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestWhyOfForgottenPod: a pod that was bound before the server started has a node, and a sentence that says what is
// not known.
func TestWhyOfForgottenPod(t *testing.T) {
	w := &story.Why{Namespace: "default", Name: "old", Partial: true}
	Explain(w,
		&Around{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: corev1.PodSpec{NodeName: "n"}}})
	if w.Node != "n" || !strings.Contains(w.Reason, "not remembered") {
		t.Errorf("got %+v", w)
	}
}

// TestWhyNoNodeWasLookedAt: what stands in the pod itself is not counted by nodes.
func TestWhyNoNodeWasLookedAt(t *testing.T) {
	var b bytes.Buffer
	RenderWhy(&b, &story.Why{
		Decision: &decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Nodes: 1,
			},
			Reasons: map[string]int{`persistentvolumeclaim "missing" not found`: 1},
		},
		Tries: 1,
	}, false, 0)
	if !strings.Contains(b.String(), `on any node: persistentvolumeclaim "missing" not found`) {
		t.Errorf("got %s", b.String())
	}
}

// TestProbeFailsOn: the number of failures of a probe replaces the previous number.
func TestProbeFailsOn(t *testing.T) {
	marks := []event.Event{{
		Step:      event.StepRequest,
		Component: "apiserver",
		At:        at(0),
		Took:      us(100),
		Subject:   pod,
		Detail: &event.Request{
			Verb:     "POST",
			Resource: "pods",
			User:     "u",
			Code:     201,
		},
	}}
	for i, said := range []string{"500", "500 (2 times in 10s)", "500 (4 times in 30s)"} {
		marks = append(marks, event.Event{
			Step:      event.StepProbe,
			Component: "kubelet",
			At:        at(1000 * (i + 1)),
			Subject:   pod,
			Detail: &event.Probe{
				Container: "c",
				Kind:      "readiness",
				Action:    "http :80/",
				Output:    said,
			},
		})
	}
	marks = append(marks, event.Event{
		Step:      event.StepProbe,
		Component: "kubelet",
		At:        at(9000),
		Subject:   pod,
		Detail: &event.Probe{
			Container: "c",
			Kind:      "readiness",
			Action:    "http :80/",
			Success:   true,
			Output:    "200",
		},
	})
	s, err := listening(marks).Story(pod.Namespace, pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Steps[len(s.Steps)-1].What, "readiness http :80/ -> 500 (4 times in 30s); readiness http :80/ "+
		"-> 200"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestStepsOfOddPods: what others than scheduler and kubelet did is not attributed to them.
func TestStepsOfOddPods(t *testing.T) {
	api := func(ms int, verb, sub, user string, revision int64) event.Event {
		return event.Event{
			Step:      event.StepRequest,
			Component: "apiserver",
			At:        at(ms),
			Took:      us(100),
			Subject:   pod,
			Detail: &event.Request{
				Verb:        verb,
				Resource:    "pods",
				Subresource: sub,
				User:        user,
				Code:        200,
				Revision:    revision,
				Key:         "/registry/pods/x",
			},
		}
	}
	for name, tt := range map[string]struct {
		marks       []event.Event
		want, never string
	}{
		"bound by hand": {
			[]event.Event{api(0, "POST", "", "ann", 5), api(1000, "POST", "binding", "ann", 6)},
			"    7  none: the scheduler did not bind it; the binding below was made by another client\n", "7  not remembered",
		},
		"a node that is not there": {
			[]event.Event{
				api(0, "POST", "", "ann", 5), api(1000, "PATCH", "status",
					"system:serviceaccount:kube-system:pod-garbage-collector", 6), api(2000, "DELETE", "", "gc", 7),
			},
			" then\n", "The kubelet reports",
		},
		"a kubelet's report": {
			[]event.Event{api(0, "POST", "", "ann", 5), api(1000, "PATCH", "status", "system:node:n", 6)},
			"The kubelet reports", " then\n",
		},
	} {
		s, err := listening(tt.marks).Story(pod.Namespace, pod.Name)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		RenderSteps(&b, &s, false, 0)
		if !strings.Contains(b.String(), tt.want) || strings.Contains(b.String(), tt.never) {
			t.Errorf("%s: want %q and not %q in\n%s", name, tt.want, tt.never, b.String())
		}
	}
}
