// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/policy"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

func policyOf(t *testing.T, name string, s policy.Spec) *policy.Policy {
	t.Helper()
	p, errs := policy.Compile(name, &s, field.NewPath("spec"))
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	return p
}

func refuses(e string) policy.Spec { return policy.Spec{Filters: []policy.Filter{{Expression: e}}} }

// TestPoliciesDecide: the file's policies are asked first, then the objects'; scores choose; what changes is seen by
// the next attempt.
func TestPoliciesDecide(t *testing.T) {
	objects := &policy.Set{}
	own := configured(t, &plugins.Shared{Policies: objects}, policy.Plugin,
		`{"policies": [{"name": "pool", "filters": [{"expression": "node.labels['pool'] == pod.labels['pool']", "message": "another pool"}]}]}`)
	h := schedtest.New(1, 1, framework.Weighted{Plugin: own, Weight: 1})
	for _, name := range []string{"a1", "a2", "b1", "b2"} {
		h.Add(schedtest.Node(name, schedtest.Labels("pool", name[:1], "number", name[1:])))
	}
	try := func() *framework.Attempt { return h.Try(schedtest.Pod("x", schedtest.Labelled("pool", "a"))) }
	if a := try(); len(a.Feasible) != 2 || len(a.Reasons()) != 1 ||
		a.Reasons()["node(s) refused by policy pool: another pool"] != 2 {
		t.Errorf("feasible %d, reasons %v", len(a.Feasible), a.Reasons())
	}
	objects.Use([]*policy.Policy{
		policyOf(t, "high", policy.Spec{
			Scores: []policy.Score{{Expression: "node.labels['number'] == '2'", Weight: new(int32(100))}},
		}),
	})
	if a := try(); a.Chosen.Name != "a2" {
		t.Errorf("chosen %s, want a2", a.Chosen.Name)
	}
	objects.Use([]*policy.Policy{policyOf(t, "one", refuses("node.labels['number'] == '1'"))})
	if a := try(); a.Chosen == nil || a.Chosen.Name != "a1" {
		t.Errorf("chosen %v, want a1", a.Chosen)
	}
	objects.Use([]*policy.Policy{policyOf(t, "none", refuses("false"))})
	if a := try(); a.Chosen != nil ||
		a.Message() != "0/4 nodes are available: 2 node(s) refused by policy none: does not satisfy false, 2 node(s) refused by policy pool: another pool." {
		t.Errorf("message %q", a.Message())
	}
	objects.Use(nil)
	if a := try(); a.Chosen == nil {
		t.Errorf("message %q", a.Message())
	}
}

// TestPolicyHints: which events wake a pod that policies refused.
func TestPolicyHints(t *testing.T) {
	labels := refuses("node.labels['disk'] == 'ssd'")
	pods := refuses("node.pods < 3")
	others := labels
	others.SchedulerNames = []string{"other"}
	before := schedtest.Node("n")
	after := schedtest.Node("n", schedtest.Labels("disk", "ssd"))
	nodeEvent := func(k framework.EventKinds, n *corev1.Node) framework.Event {
		return framework.Event{Kinds: k, OldNode: before, NewNode: n}
	}
	changed := func(old, now *policy.Policy) framework.Event {
		return framework.Event{
			Kinds:     framework.Objects,
			Resource:  policy.Resource,
			OldObject: old,
			NewObject: now,
		}
	}
	mine := policyOf(t, "p", labels)
	their := policyOf(t, "p", others)
	scores := policyOf(t, "p", policy.Spec{Scores: []policy.Score{{Expression: "1"}}})
	for _, tt := range []struct {
		name  string
		spec  policy.Spec
		event framework.Event
		want  bool
	}{
		{"the label that is wanted", labels, nodeEvent(framework.NodeLabels, after), true},
		{"another label", labels, nodeEvent(framework.NodeLabels, before), false},
		{"a node that does", labels, nodeEvent(framework.NodeAdd, after), true},
		{"a node that does not", labels, nodeEvent(framework.NodeAdd, before), false},
		{"something it does not read", labels, nodeEvent(framework.NodeAllocatable|framework.NodeOther, after), false},
		{
			"a pod that leaves, of no interest", labels, framework.Event{
				Kinds:  framework.AssignedPodDelete,
				OldPod: schedtest.Pod("o"),
			}, false,
		},
		{
			"a pod that leaves", pods,
			framework.Event{Kinds: framework.AssignedPodDelete, OldPod: schedtest.Pod("o")},
			true,
		},
		{"an annotation", refuses("node.annotations['a'] == 'b'"), nodeEvent(framework.NodeOther, before), true},
		{"its policy is changed", labels, changed(mine, scores), true},
		{"its policy goes", labels, changed(mine, nil), true},
		{"another policy goes", labels, changed(their, nil), false},
		{"a policy that only scores goes", labels, changed(scores, nil), false},
		{"a policy comes", labels, changed(nil, mine), false},
		{"the pod itself", labels, framework.Event{Kinds: framework.UnscheduledPodUpdate}, true},
	} {
		p := &plugins.CELPolicy{Profile: "default-scheduler", Own: []*policy.Policy{policyOf(t, "p", tt.spec)}}
		got := false
		for _, h := range p.Plugin().Events {
			if h.Match(&tt.event) && (h.QueueingHintFn == nil || h.QueueingHintFn(state.NewPodInfo(schedtest.Pod("x")),
				&tt.event)) {
				got = true
			}
		}
		if got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
