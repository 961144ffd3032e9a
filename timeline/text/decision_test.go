// SPDX-License-Identifier: Apache-2.0

package text

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/story"
	"keelson/timeline/storytest"
)

// TestDecisionOfTheAPI shows the objects that kubectl reads.
func TestDecisionOfTheAPI(t *testing.T) {
	bind := func(err string) event.Event {
		m := storytest.Attempted(1, 2)
		m.Step = event.StepBind
		m.Detail = &event.Bind{
			Node:    "fit-0",
			Reserve: us(3),
			Permit:  us(4),
			PreBind: us(5),
		}
		m.Took = us(900)
		m.Err = err
		return m
	}
	waits := storytest.Attempted(1, 0)
	waits.Detail = &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Attempt:  2,
			Nodes:    3,
			Message:  "0/3 nodes are available: 3 Insufficient cpu.",
			WaitsFor: "a node changes",
			RefusedBy: []decisions.RefusalGroup{{
				Plugin: "NodeResourcesFit",
				Reason: "Insufficient cpu",
				Nodes:  3,
				Names:  []string{"n1"},
			}},
			Fixes: []string{"fits on n1 if cpu request <= 2"},
			ExtensionPoints: []decisions.ExtensionPoint{
				{Name: decisions.PreFilter, Took: metav1.Duration{Duration: us(2)}},
				{Name: decisions.Filter, Took: metav1.Duration{Duration: us(30) - us(2)}},
				{Name: decisions.PostFilter, Took: metav1.Duration{Duration: us(70)}},
			},
		},
		Reasons: map[string]int{"Insufficient cpu": 3},
	}
	preempts := waits
	preempts.Detail = &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Attempt: 1,
			Nodes:   3,
			Preemption: &decisions.Preemption{
				Node:       "n1",
				Victims:    []decisions.Victim{{Namespace: "shop", Name: "cheap", Priority: 1}},
				Count:      1,
				Candidates: 2,
				RunnerUp:   "n2",
				Why:        "it has fewer victims",
			},
		},
		Reasons: map[string]int{"Insufficient cpu": 3},
	}
	judged := storytest.Attempted(1, 0)
	judged.Detail = &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Attempt:  1,
			Nodes:    1,
			Feasible: 1,
			Node:     "n1",
			Rules: []decisions.Rule{
				{
					Plugin:     "CELPolicy",
					Policy:     "rank",
					From:       "SchedulingPolicy",
					Field:      "scores[0]",
					Expression: "int(node.labels['rank'])",
					Weight:     6,
				},
			},
			Scores: []decisions.NodeScore{{Node: "n1", Total: 42, Rules: []decisions.RuleScore{{Raw: 7, Normalized: 7, Weighted: 42}}}},
		},
	}
	for name, marks := range map[string][]event.Event{
		"judged":        {judged},
		"scheduled":     {storytest.Attempted(1, 2), bind("")},
		"bind-failed":   {storytest.Attempted(1, 2), bind("conflict")},
		"unschedulable": {waits},
		"preempting":    {preempts},
	} {
		d := PodDecision(listening(marks).Decided("uid-1"))
		if d == nil {
			t.Fatalf("%s: nothing is remembered", name)
		}
		d.CreationTimestamp.Time = d.CreationTimestamp.UTC()
		b, err := yaml.Marshal(d.Status)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "decision-"+name, b)
	}
}

// TestPreemptedTellsForWhom: who has to go for another pod, and is gone, knows its name; a later pod of the same name
// does not.
func TestPreemptedTellsForWhom(t *testing.T) {
	small := event.Subject{
		Resource:  "pods",
		Namespace: "shop",
		Name:      "small",
		UID:       "1",
	}
	big := event.Subject{
		Resource:  "pods",
		Namespace: "bank",
		Name:      "big",
		UID:       "2",
	}
	post := func(ms int, s event.Subject) event.Event {
		return event.Event{
			Step:      event.StepRequest,
			Component: "apiserver",
			At:        at(ms),
			Subject:   s,
			Detail: &event.Request{
				Verb:     "POST",
				Resource: "pods",
				User:     "u",
				Code:     201,
			},
		}
	}
	decides := func(ms int, s event.Subject, d *decisions.Attempt) event.Event {
		return event.Event{
			Step:      event.StepDecision,
			Component: "scheduler",
			At:        at(ms),
			Subject:   s,
			Detail:    d,
		}
	}
	tl := listening([]event.Event{
		post(0, small), decides(1000, small, &decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Attempt:  1,
				Nodes:    1,
				Feasible: 1,
				Node:     "n",
			},
		}), post(2000, big),
		decides(3000, big, &decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Attempt: 1,
				Nodes:   1,
				Preemption: &decisions.Preemption{
					Node:    "n",
					Count:   1,
					Victims: []decisions.Victim{{Namespace: "shop", Name: "small"}},
				},
			},
		}),
		{
			Step:      event.StepRequest,
			Component: "apiserver",
			At:        at(4000),
			Subject:   small,
			Detail: &event.Request{
				Verb:     "DELETE",
				Resource: "pods",
				User:     story.SchedulerUser,
				Code:     200,
			},
		},
	})
	w, err := tl.Why("shop", "small")
	if err != nil {
		t.Fatal(err)
	}
	w.Gone = true
	var b strings.Builder
	RenderWhy(&b, &w, false, 0)
	if want := "it is gone; it was on n "; !strings.Contains(b.String(), want) {
		t.Errorf("got %s, want %q in it", b.String(), want)
	}
	if want := "preempted by pod bank/big, which has a higher priority and needed its place\n"; !strings.Contains(
		b.String(), want) {
		t.Errorf("got %s, want %q in it", b.String(), want)
	}
	s, err := tl.Story("shop", "small")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Steps[len(s.Steps)-1].What,
		"DELETE pods by system:kube-scheduler: preempted by pod bank/big"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	again := small
	again.UID = "3"
	tl.Listen(post(5000, again))
	if w, err := tl.Why("shop", "small"); err != nil || w.PreemptedBy != "" {
		t.Errorf("its successor is preempted by %q, %v", w.PreemptedBy, err)
	}
}

// TestPreemptorNamesVictims: a pod that is scheduled at last still names the pods that went for it, each preemption
// once.
func TestPreemptorNamesVictims(t *testing.T) {
	vip := event.Subject{
		Resource:  "pods",
		Namespace: "bank",
		Name:      "vip",
		UID:       "2",
	}
	room := &decisions.Preemption{
		Node:  "n",
		Count: 3,
		Victims: []decisions.Victim{
			{Namespace: "shop", Name: "small", Priority: 1},
			{Namespace: "shop", Name: "tiny"},
		},
	}
	decides := func(us int, d decisions.Attempt) event.Event {
		return event.Event{
			Step:      event.StepDecision,
			Component: "scheduler",
			At:        at(us),
			Subject:   vip,
			Detail:    &d,
		}
	}
	marks := []event.Event{
		decides(0, decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Attempt:    1,
				Nodes:      1,
				Preemption: room,
			},
		}),
		decides(1000, decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Attempt:    2,
				Nodes:      1,
				Preemption: room,
			},
		}),
		decides(2000, decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Attempt:  3,
				Nodes:    1,
				Feasible: 1,
				Node:     "n",
			},
		}),
	}
	const line = "   room was made on n: shop/small (priority 1), shop/tiny (priority 0), and 1 more had to go\n"
	for tried, want := range map[int]int{1: 0, 2: 0, 3: 1} {
		w, err := listening(marks[:tried]).Why("bank", "vip")
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		RenderWhy(&b, &w, false, 0)
		if got := strings.Count(b.String(), line); got != want {
			t.Errorf("after %d attempts: %q is there %d times, want %d:\n%s", tried, line, got, want, b.String())
		}
	}
}
