// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"keelson/lib/mark"
)

// attempted is the mark of an attempt for pod number i, about n nodes that fit and n that do not.
func attempted(i, n int) mark.Mark {
	d := &mark.Decision{Attempt: 1, Nodes: 2 * n, Fit: n, Chosen: "fit-0", RejectedBy: map[string]int{"Insufficient cpu": n}}
	for j := range n {
		d.Rejected = append(d.Rejected, mark.Verdict{Node: fmt.Sprintf("full-%d", j), Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Short: fmt.Sprintf("cpu: asks %d, free 0 of 4", i)})
		d.Scores = append(d.Scores, mark.NodeScore{Node: fmt.Sprintf("fit-%d", j), Plugins: []mark.PluginScore{{Plugin: "ImageLocality", Raw: 7, Score: 3, Weight: 2}}})
	}
	return mark.Mark{
		Step: mark.StepDecision, Component: "scheduler", At: at(i), Took: us(80), Detail: d,
		Subject: mark.Subject{Resource: "pods", Namespace: "default", Name: fmt.Sprint("p", i), UID: fmt.Sprint("uid-", i)},
	}
}

// TestDecisionsAreBounded: whole decisions take no more bytes than they may, and those that went leave their brief form in the story.
func TestDecisionsAreBounded(t *testing.T) {
	const limit, pods = 1 << 20, 2000
	before := heap()
	tl := New(Config{DecisionBytes: limit})
	for i := range pods {
		tl.Listen(attempted(i, 20))
	}
	grown := heap() - before
	kept := 0
	for i := range pods {
		d := tl.Decision(types.UID(fmt.Sprint("uid-", i)))
		if d == nil {
			continue
		}
		if kept++; len(d.Status.Refusals) != 20 || len(d.Status.Scores) != 20 {
			t.Fatalf("pod %d is remembered with %d refusals and %d scores, want 20 of each", i, len(d.Status.Refusals), len(d.Status.Scores))
		}
	}
	if kept == 0 || kept == pods || tl.Decision("uid-1999") == nil || tl.Decision("uid-0") != nil || tl.decided.bytes > limit {
		t.Errorf("%d decisions in %d bytes; want the last ones, in %d at most", kept, tl.decided.bytes, limit)
	}
	if stories := int64(pods * 2500); grown > 2*limit+stories {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	old, err := tl.Why("default", "p0")
	if err != nil || !old.Brief || len(old.Decision.Rejected) != 3 {
		t.Errorf("a decision that went: %+v, %v; want its brief form", old, err)
	}
	whole, err := tl.Why("default", "p1999")
	if err != nil || whole.Brief || len(whole.Decision.Rejected) != 20 {
		t.Errorf("a decision that is there: %+v, %v; want it whole", whole, err)
	}
	runtime.KeepAlive(tl)
}

// TestDecisionOfTheAPI shows the objects that kubectl reads.
func TestDecisionOfTheAPI(t *testing.T) {
	bind := func(err string) mark.Mark {
		m := attempted(1, 2)
		m.Step, m.Detail, m.Took, m.Err = mark.StepBind, &mark.Bind{Node: "fit-0", Reserve: us(3), Permit: us(4), PreBind: us(5)}, us(900), err
		return m
	}
	waits := attempted(1, 0)
	waits.Detail = &mark.Decision{
		Attempt: 2, Nodes: 3, Message: "0/3 nodes are available: 3 Insufficient cpu.", RejectedBy: map[string]int{"Insufficient cpu": 3}, Waits: "a node changes",
		Groups: []mark.Group{{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Nodes: 3, Names: []string{"n1"}}}, Fixes: []string{"fits on n1 if cpu request <= 2"},
		PreFilter: us(2), Filter: us(30), PostFilter: us(70),
	}
	preempts := waits
	preempts.Detail = &mark.Decision{Attempt: 1, Nodes: 3, RejectedBy: map[string]int{"Insufficient cpu": 3}, Preemption: &mark.Preemption{
		Node: "n1", Victims: []mark.Victim{{Namespace: "shop", Name: "cheap", Priority: 1}}, Count: 1, Candidates: 2, RunnerUp: "n2", Why: "it has fewer victims",
	}}
	for name, marks := range map[string][]mark.Mark{
		"scheduled": {attempted(1, 2), bind("")}, "bind-failed": {attempted(1, 2), bind("conflict")}, "unschedulable": {waits}, "preempting": {preempts},
	} {
		d := listening(marks).Decision("uid-1")
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
