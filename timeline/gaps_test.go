// SPDX-License-Identifier: Apache-2.0

package timeline

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
)

// TestGaps: the time that no step covers is told by what the pod waited for.
func TestGaps(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for name, tt := range map[string]struct {
		next Step
		want string
	}{
		"probe":   {Step{Who: "kubelet n", What: "readiness http :80/ ok; status written; Ready"}, "kubelet n: readiness http :80/ ok"},
		"restart": {Step{Who: "kubelet n", What: "image x present; c (restart 2) created 1 ms"}, "the back-off after a failed run, then c (restart 2) created 1 ms"},
		"queue":   {Step{Who: "scheduler", What: "try 2: queue 1 ms"}, "the scheduler's next attempt"},
		"user":    {Step{Who: "apiserver", What: "POST pods by ann (kubectl)"}, "somebody to ask: POST pods by ann"},
		"control": {Step{Who: "controllers", What: "deployment: event seen"}, "its turn in a controller's queue: "},
	} {
		tt.next.At = ms(2600)
		tt.next.Took = ms(5)
		steps := []Step{{Took: ms(10), Who: "apiserver", What: "POST pods by ann"}, tt.next}
		got := gaps(steps, covered(steps, ms(2605)), ms(2605))
		if len(got) != 1 || got[0].At != ms(10) || got[0].Took != ms(2590) || !strings.HasPrefix(got[0].For, tt.want) {
			t.Errorf("%s: got %+v, want 2590 ms for %q", name, got, tt.want)
		}
		s := &Story{Gaps: got}
		if line := s.gapLines()[0]; !strings.HasPrefix(line, "   waited: 2.59 s, from 10.0 ms on, for "+tt.want) {
			t.Errorf("%s: got %q", name, line)
		}
	}
	whole := []Step{{Took: ms(100)}, {At: ms(90), Took: ms(20)}}
	if got := gaps(whole, covered(whole, ms(110)), ms(110)); len(got) > 0 {
		t.Errorf("without a gap: got %+v", got)
	}
}

// TestSlowWrite: a write that took long says for what it waited.
func TestSlowWrite(t *testing.T) {
	for want, req := range map[string]*event.Request{
		"queue    waited for its turn": {Queue: 11 * time.Second},
		"webhook a.b took 10s and failed; 1 plugin accepted it as it was": {
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
		list := stages(0, 11*time.Second, req, 0)
		for _, s := range list {
			text.WriteString(s.Who + "    " + s.What + "\n")
		}
		if short := longest(list); !strings.Contains(strings.ReplaceAll(text.String(), "    ", " "),
			strings.ReplaceAll(want, "    ", " ")) && !strings.Contains(text.String(), want) ||
			!strings.HasPrefix(short, "; 11.00 s of it: ") {
			t.Errorf("got %q and\n%s\nwant %q", short, text.String(), want)
		}
	}
	if got := longest(stages(0, time.Millisecond, &event.Request{Store: time.Millisecond, Revision: 1}, 0)); got != "" {
		t.Errorf("a quick write: got %q", got)
	}
}

// TestRolloutSaysWhy: a Deployment that has enough pods makes others because of its new template.
func TestRolloutSaysWhy(t *testing.T) {
	w := writer{handOffs: &classifier{}}
	got := w.reconcile(event.Event{}, &event.Reconcile{
		Controller: "deployment",
		Wants:      3,
		Has:        3,
		Because:    "1 with the new template",
		Scales:     []string{"web-2 from 1 to 2"},
	}).What
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
	story := func(source, kubelet, writer string) []event.Event {
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
			delivered(2, 10, schedulerUser), delivered(2, 10, kubelet),
			seen,
			request(4, "PUT", "status", writer, 11),
			delivered(5, 11, schedulerUser), delivered(5, 11, kubelet),
			podMark(event.StepReady, 5, &event.Status{From: "Pending", To: "Running", Ready: true}),
		}
	}
	for name, tt := range map[string]struct {
		marks []event.Event
		want  []string
	}{
		"node": {story("api", "system:node:n", "system:node:n"), []string{"11  "}},
		"fake": {story(simulator, simulatorUser, simulatorUser), []string{
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

// TestRecreated: a pod that replaces one of the same name has the later reconcile in its story.
func TestRecreated(t *testing.T) {
	reconcile := func(second int) event.Event {
		return event.Event{
			Step:    event.StepReconcile,
			At:      at(second * 1e6),
			Subject: set,
			Detail:  &event.Reconcile{Creates: []string{podName}},
		}
	}
	all := []event.Event{reconcile(1), reconcile(50), reconcile(70)}
	if got := reconcileOf(all, at(50_100_000), podName, true); got == nil || !got.At.Equal(at(50_000_000)) {
		t.Errorf("got %v, want the one of 50 s", got)
	}
}

// TestFakeNode: nothing runs on a fake node, and its taint is explained where it refuses a pod.
func TestFakeNode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "f", Annotations: map[string]string{simulatedBy: "x"}}}
	a := &Around{Pod: &corev1.Pod{Spec: corev1.PodSpec{NodeName: "f"}}, Node: node}
	if got := explained(&Why{}, a); !strings.Contains(got, "   fake node f is a fake node: nothing runs there") {
		t.Errorf("got\n%s", got)
	}
	for chosen, want := range map[string]int{"": 1, "n": 0} {
		w := &Why{Decision: &decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Nodes: 1,
				Node:  chosen,
				Refusals: []decisions.Refusal{{
					Node:     "f",
					Plugin:   "TaintToleration",
					Shortage: "taint keelson.dev/fake=true:NoSchedule not tolerated",
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
