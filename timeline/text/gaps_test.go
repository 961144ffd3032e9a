// SPDX-License-Identifier: Apache-2.0

package text

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/story"
)

// TestGaps: the time that no step covers is explained by what the pod waited for.
func TestGaps(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	kubelet := func(parts ...event.Event) []event.Event { return parts }
	container := &event.Container{Name: "c", Restart: 2}
	probe := &event.Probe{Kind: "readiness", Action: "http :80/", Success: true}
	for name, tt := range map[string]struct {
		next []event.Event
		want string
	}{
		"probe": {
			kubelet(mark(event.StepProbe, "kubelet n", probe), mark(event.StepReady, "kubelet n", &event.Status{})),
			"kubelet n: readiness http :80/ ok",
		},
		"restart": {
			kubelet(mark(event.StepImage, "kubelet n", &event.Image{Image: "x", Present: true}),
				mark(event.StepContainerCreated, "kubelet n", container)),
			"the back-off after a failed run, then c (restart 2) created",
		},
		"status": {
			kubelet(mark(event.StepStatus, "kubelet n", &event.Status{})),
			"the kubelet to have something to report",
		},
		"queue":   {kubelet(mark(event.StepQueued, "scheduler", &event.Queued{Why: "NodeAdd"})), "a change in the cluster that may help: NodeAdd"},
		"user":    {kubelet(mark(event.StepRequest, "apiserver", &event.Request{Verb: "PATCH", Resource: "pods", User: "ann"})), "somebody to ask: PATCH pods by ann"},
		"program": {kubelet(mark(event.StepRequest, "apiserver", &event.Request{Verb: "PATCH", Resource: "pods", User: "system:x"})), "apiserver: PATCH pods by system:x"},
		"watch":   {kubelet(mark(event.StepDelivery, "apiserver", &event.Delivery{Revision: 7, To: "ann"})), "apiserver: watch event, pod at revision 7: to ann"},
	} {
		first := mark(event.StepRequest, "apiserver", &event.Request{Verb: "POST", Resource: "pods", User: "ann", Code: 201})
		first.At = t0
		first.Took = ms(10)
		for i := range tt.next {
			tt.next[i].At = t0.Add(ms(2600))
			tt.next[i].Took = ms(5)
		}
		s, err := listening(append([]event.Event{first}, tt.next...)).Story("default", podName)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Gaps; len(got) != 1 || got[0].At != ms(10) || got[0].Took != ms(2590) ||
			!strings.HasPrefix(got[0].For, tt.want) {
			t.Errorf("%s: got %+v, want 2590 ms for %q", name, got, tt.want)
		}
		if line := gapLines(&s)[0]; !strings.HasPrefix(line, "   waited: 2.59 s, from 10.0 ms on, for "+tt.want) {
			t.Errorf("%s: got %q", name, line)
		}
	}
	if s, err := listening(journey()).Story("default", podName); err != nil || len(s.Gaps) > 0 {
		t.Errorf("without a gap: got %+v, %v", s.Gaps, err)
	}
}

// mark is a mark about the test's pod.
func mark(step event.Step, component string, detail any) event.Event {
	return event.Event{
		Step:      step,
		Component: component,
		Subject:   pod,
		Detail:    detail,
	}
}

// TestSlowWrite: a write that took long says for what it waited.
func TestSlowWrite(t *testing.T) {
	for want, req := range map[string]*event.Request{
		"queue    waited for its turn": {Queue: 11 * time.Second},
		"webhook a.b took 10s and failed; 1 plugin, no change": {
			Admission:         11 * time.Second,
			AdmissionAccepted: 1,
			AdmissionSlow:     "webhook a.b took 10s and failed",
		},
		"its turn after other writes 9.00 s": {
			Store:    11 * time.Second,
			Sync:     2 * time.Second,
			Revision: 7,
			Key:      "/k",
		},
		"rest    waited for the client's body": {Authn: time.Millisecond},
	} {
		var text strings.Builder
		step := &story.Step{Took: 11 * time.Second, Mark: &event.Event{Step: event.StepRequest, Detail: req}}
		list := story.Stages(step)
		for _, s := range list {
			text.WriteString(s.Who + "    " + clauses(&s)[0] + "\n")
		}
		if short := longest(list)[0]; !strings.Contains(strings.ReplaceAll(text.String(), "    ", " "),
			strings.ReplaceAll(want, "    ", " ")) && !strings.Contains(text.String(), want) ||
			!strings.HasPrefix(short, "11.00 s of it: ") {
			t.Errorf("got %q and\n%s\nwant %q", short, text.String(), want)
		}
	}
	quick := &event.Request{Store: time.Millisecond, Revision: 1}
	step := &story.Step{Took: time.Millisecond, Mark: &event.Event{Step: event.StepRequest, Detail: quick}}
	if got := longest(story.Stages(step)); got != nil {
		t.Errorf("a quick write: got %q", got)
	}
}

// TestRolloutSaysWhy: a Deployment that has enough pods makes others because of its new template.
func TestRolloutSaysWhy(t *testing.T) {
	got := reconcile(nil, &event.Reconcile{
		Controller: "deployment",
		Wants:      3,
		Has:        3,
		Because:    "1 with the new template",
		Scales:     []string{"web-2 from 1 to 2"},
	})[0]
	if want := "deployment: event seen; wants 3, has 3, 1 with the new template: scales web-2 from 1 to 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// steps is a pod's story as hand-offs.
func steps(t *testing.T, marks []event.Event) string {
	t.Helper()
	s, err := listening(marks).Story("default", podName)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	RenderSteps(&b, &s, false, 0)
	return b.String()
}

// TestStepsOfNamedPods: a pod with spec.nodeName, on a node and on a fake one, has its hand-offs in their places.
func TestStepsOfNamedPods(t *testing.T) {
	life := func(source, kubelet, writer string) []event.Event {
		delivered := func(second int, revision int64, to string) event.Event {
			return podMark(event.StepDelivery, second, &event.Delivery{Event: "MODIFIED", Revision: revision, To: to})
		}
		request := func(second int, verb, sub, user string, revision int64) event.Event {
			return podMark(event.StepRequest, second, &event.Request{
				Verb:        verb,
				Resource:    "pods",
				Subresource: sub,
				User:        user,
				Code:        200,
				Revision:    revision,
				Status:      map[string]*event.StatusChange{"status": {To: "Running"}}[sub],
			})
		}
		seen := podMark(event.StepSeen, 3, &event.Seen{Source: source})
		seen.Component = "kubelet n"
		return []event.Event{
			request(1, "POST", "", "ann", 10),
			delivered(2, 10, story.SchedulerUser), delivered(2, 10, kubelet),
			seen,
			request(4, "PUT", "status", writer, 11),
			delivered(5, 11, story.SchedulerUser), delivered(5, 11, kubelet),
			podMark(event.StepReady, 5, &event.Status{From: "Pending", To: "Running", Ready: true}),
		}
	}
	for name, tt := range map[string]struct {
		marks []event.Event
		want  []string
	}{
		"node": {life("api", "system:node:n", "system:node:n"), []string{"11  "}},
		"fake": {life(story.SourceSimulator, story.SimulatorUser, story.SimulatorUser), []string{
			"11  none: n is a fake node, whose simulator runs nothing", "store -> API server -> simulator",
		}},
	} {
		text := steps(t, tt.marks)
		for _, want := range append(tt.want, "is left alone") {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
		order := []int{
			strings.Index(text, "   10  "), strings.Index(text, "   12  "), strings.Index(text, "PUT pods/status"),
			strings.Index(text, "   13  store"), strings.LastIndex(text, "revision 11"),
		}
		if slices.Contains(order, -1) || !slices.IsSorted(order) || strings.Contains(text, "then\n") {
			t.Errorf("%s: got positions %v in\n%s", name, order, text)
		}
	}
}

// TestFakeNode: nothing runs on a fake node, and its taint is explained where it refuses a pod.
func TestFakeNode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "f", Annotations: map[string]string{simulatedBy: "x"}}}
	a := &Around{Pod: &corev1.Pod{Spec: corev1.PodSpec{NodeName: "f"}}, Node: node}
	if got := explained(&story.Why{}, a); !strings.Contains(got, "   fake node f is a fake node: nothing runs there") {
		t.Errorf("got\n%s", got)
	}
	for chosen, want := range map[string]int{"": 1, "n": 0} {
		w := &story.Why{Decision: &decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Nodes: 1,
				Node:  chosen,
				Refusals: []decisions.Refusal{{
					Node:     "f",
					Plugin:   "TaintToleration",
					Shortage: "taint keelson.dev/fake=true:NoSchedule not tolerated",
					Taint:    &decisions.Taint{Key: "keelson.dev/fake", Value: "true", Effect: "NoSchedule"},
				}},
			},
		}}
		var b bytes.Buffer
		RenderWhy(&b, w, false, 0)
		if got := strings.Count(b.String(), "spec.tolerations: [{key: keelson.dev/fake, operator: Exists}]"); got != want {
			t.Errorf("chosen %q: got %s, want %d explanations", chosen, fmt.Sprint(got)+"\n"+b.String(), want)
		}
	}
}
