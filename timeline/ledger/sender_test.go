// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/text"
)

// fromNode is what node-1 may send; bound to it are the pods a and, as long as it exists, b.
func fromNode(bound map[string]Pod) func(*http.Request) Sender {
	return func(*http.Request) Sender {
		return Sender{
			Name:  "system:node:node-1",
			Node:  "node-1",
			Steps: NodeSteps,
			Bound: func() map[string]Pod { return bound },
		}
	}
}

// TestNodesTellOfTheirPodsOnly: of what a node sends, its own steps of its own pods are remembered, and nothing else.
func TestNodesTellOfTheirPodsOnly(t *testing.T) {
	now := time.Now()
	subject := func(name string) event.Subject {
		return event.Subject{
			Resource:  "pods",
			Namespace: "default",
			Name:      name,
			UID:       name + "-uid",
		}
	}
	bind := func(name, node string) event.Event {
		return event.Event{
			Step:      event.StepBind,
			Component: "scheduler",
			At:        now,
			Subject:   subject(name),
			Detail:    &event.Bind{Node: node},
		}
	}
	seen := func(name string) event.Event {
		return event.Event{
			Step:      event.StepSeen,
			Component: "kubelet node-1",
			At:        now,
			Subject:   subject(name),
			Detail:    &event.Seen{Source: "api"},
		}
	}
	for what, tt := range map[string]struct {
		mark event.Event
		edit func(*event.Event)
		want bool
	}{
		"its pod":                       {seen("a"), nil, true},
		"its pod that has gone":         {seen("gone"), nil, true},
		"another node's pod":            {seen("theirs"), nil, false},
		"another node's pod, forged":    {seen("theirs"), func(m *event.Event) { m.ReportedBy = "node-2" }, false},
		"an unknown pod":                {seen("unknown"), nil, false},
		"its pod by another name":       {seen("a"), func(m *event.Event) { m.Subject.Name = "theirs" }, false},
		"its name, another's uid":       {seen("a"), func(m *event.Event) { m.Subject.UID = "theirs-uid" }, false},
		"its static pod's uid, claimed": {seen("theirs"), func(m *event.Event) { m.Subject.Name = "mirror" }, false},
		"no uid":                        {seen("a"), func(m *event.Event) { m.Subject.UID = "" }, false},
		"an owner":                      {seen("a"), func(m *event.Event) { m.Subject.Resource = "replicasets" }, false},
		"a decision": {event.Event{
			Step:    event.StepDecision,
			At:      now,
			Subject: subject("a"),
			Detail: &decisions.Attempt{
				PodDecisionStatus: decisions.PodDecisionStatus{
					Node: "node-2",
				},
			},
		}, nil, false},
		"a binding": {bind("a", "node-2"), nil, false},
		"a request": {event.Event{
			Step:    event.StepRequest,
			At:      now,
			Subject: subject("a"),
			Detail:  &event.Request{Verb: "POST", User: "admin"},
		}, nil, false},
		"a reconcile": {event.Event{
			Step:    event.StepReconcile,
			At:      now,
			Subject: subject("a"),
			Detail:  &event.Reconcile{Controller: "x"},
		}, nil, false},
		"the future":       {seen("a"), func(m *event.Event) { m.At = now.Add(time.Hour) }, false},
		"the distant past": {seen("a"), func(m *event.Event) { m.At = now.Add(-48 * time.Hour) }, false},
		"a step of a year": {seen("a"), func(m *event.Event) { m.Took = 365 * 24 * time.Hour }, false},
		"a long word":      {seen("a"), func(m *event.Event) { m.Err = strings.Repeat("x", longestNodeMark) }, false},
	} {
		tl := New(Config{})
		for _, m := range []event.Event{bind("a", "node-1"), bind("gone", "node-1"), bind("theirs", "node-2")} {
			tl.Listen(m)
		}
		handler := tl.Handler(fromNode(map[string]Pod{"a-uid": {"default", "a"}, "theirs-uid": {"default", "mirror"}}))
		m := tt.mark
		if tt.edit != nil {
			tt.edit(&m)
		}
		if w := post(t, handler, encode(t, []event.Event{m})); w.Code != http.StatusNoContent {
			t.Errorf("%s: %d %s, want 204", what, w.Code, w.Body)
		}
		reported := 0
		for _, name := range []string{"a", "gone", "theirs", "mirror", "unknown"} {
			story, err := storyOf(tl, "default", name)
			if err != nil {
				continue
			}
			for _, step := range story.Steps {
				switch {
				case step.Who == "scheduler" && step.ReportedBy == "":
				case step.ReportedBy == "node-1" && step.Who == "kubelet node-1":
					reported++
				default:
					t.Errorf("%s: pod %s has the step %+v", what, name, step)
				}
			}
			if name == "theirs" && story.Node != "node-2" || name == "a" && story.Node != "node-1" {
				t.Errorf("%s: pod %s is on %s", what, name, story.Node)
			}
		}
		if reported != map[bool]int{true: 1, false: 0}[tt.want] {
			t.Errorf("%s: %d steps, want steps: %v", what, reported, tt.want)
		}
	}
}

// TestAgentsTellOfTheirSteps: a scheduler does not make a controller's marks.
func TestAgentsTellOfTheirSteps(t *testing.T) {
	tl := New(Config{})
	handler := tl.Handler(func(*http.Request) Sender {
		return Sender{Name: "system:kube-scheduler", Steps: SchedulerSteps}
	})
	if w := post(t, handler, encode(t, journey())); w.Code != http.StatusNoContent {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	s, err := storyOf(tl, "default", podName)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range s.Steps {
		if step.Who != "scheduler" {
			t.Errorf("a scheduler reported %+v", step)
		}
	}
}

// TestNodesWordIsShownAsSuch: in the text and in JSON; and it cannot move the cursor.
func TestNodesWordIsShownAsSuch(t *testing.T) {
	tl := New(Config{})
	now := time.Now()
	subject := event.Subject{
		Resource:  "pods",
		Namespace: "default",
		Name:      "a",
		UID:       "a-uid",
	}
	tl.Listen(event.Event{
		Step:      event.StepBind,
		Component: "scheduler",
		At:        now,
		Subject:   subject,
		Detail:    &event.Bind{Node: "node-1"},
	})
	forged := event.Event{
		Step:      event.StepContainerExited,
		Component: "kubelet\x1b[2Jnode-1",
		At:        now.Add(-time.Hour),
		Subject:   subject,
		Err:       "x\x1b]0;title\a\r",
		Detail:    &event.Container{Name: "c\x1b[1A"},
	}
	if w := post(t, tl.Handler(fromNode(map[string]Pod{"a-uid": {"default", "a"}})),
		encode(t, []event.Event{forged})); w.Code != http.StatusNoContent {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	podStory, err := storyOf(tl, "default", "a")
	if err != nil {
		t.Fatal(err)
	}
	if !podStory.Start.Equal(now) {
		t.Errorf("the story begins at %v, which is the node's word; want %v", podStory.Start, now)
	}
	var out bytes.Buffer
	text.Render(&out, &podStory, false, 0)
	if got := out.String(); !strings.Contains(got, "* as node node-1 reports it") ||
		strings.ContainsAny(got, "\x1b\a\r") {
		t.Errorf("text:\n%q", got)
	}
	b, err := json.Marshal(podStory)
	if err != nil || !strings.Contains(string(b), `"reportedBy":"node-1"`) {
		t.Errorf("JSON: %s, %v", b, err)
	}
}

// TestRates: a sender that sends without end has to wait; others do not.
func TestRates(t *testing.T) {
	tl := New(Config{})
	batch := encode(t, []event.Event{
		{Step: event.StepSeen, At: time.Now(), Subject: event.Subject{Resource: "pods", Name: "x", UID: "u"}},
	})
	batch = strings.Repeat(batch, maxHeld)
	var w *httptest.ResponseRecorder
	for range 4 {
		w = post(t, tl.Handler(fromNode(nil)), batch)
	}
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("the fourth batch: %d, want 429 with Retry-After", w.Code)
	}
	if w := post(t, tl.Handler(trusted), batch); w.Code != http.StatusNoContent {
		t.Errorf("another sender: %d, want 204", w.Code)
	}
	r := rates{}
	now := time.Now()
	if !r.take("n", marksAtOnce, now) || r.take("n", 1, now) || !r.take("n", marksPerSecond, now.Add(time.Second)) {
		t.Error("rates do not follow the clock")
	}
	for i := range mostSenders + 10 {
		r.take(strings.Repeat("n", i%100)+time.Duration(i).String(), 1, now)
	}
	if len(r.left) > mostSenders {
		t.Errorf("%d senders are remembered", len(r.left))
	}
}
