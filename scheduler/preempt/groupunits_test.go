// SPDX-License-Identifier: Apache-2.0

package preempt_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

func ofGroup(name string) schedtest.PodOption {
	return schedtest.With(func(s *corev1.PodSpec) {
		s.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
	})
}

// podGroup makes a group whose pods leave together, if all, or one by one.
func podGroup(name string, all bool, priority int32) *schedulingv1beta1.PodGroup {
	g := &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
	}
	g.Spec.Priority = &priority
	if all {
		g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
	}
	return g
}

// grouped is a cluster with groups, and the plugin that knows them.
func grouped(
	t *testing.T, budgets []*policyv1.PodDisruptionBudget, objs ...any,
) (*schedtest.Harness, *preempt.Plugin, *[]string) {
	t.Helper()
	harness := schedtest.New(1, 1)
	groups := state.NewGroups()
	var pods []runtime.Object
	for _, o := range objs {
		switch o := o.(type) {
		case *schedulingv1beta1.PodGroup:
			groups.SetObject(state.GroupKey{Namespace: o.Namespace, Name: o.Name}, o)
			continue
		case *corev1.Pod:
			groups.AddPod(o)
			pods = append(pods, o)
		}
		harness.Add(o)
	}
	var preempted []string
	return harness, preempt.New(preempt.Config{
		Client:                      client.Plain(clienttest.New(pods...)),
		MinCandidateNodesPercentage: 100,
		MinCandidateNodesAbsolute:   100,
		Log:                         slog.New(slog.DiscardHandler),
		Groups:                      groups,
		NodeOf:                      harness.Cache.Where,
		Budgets:                     func() []*policyv1.PodDisruptionBudget { return budgets },
		Later:                       func(ctx context.Context, job func(context.Context)) { job(ctx) },
		RecordPreempted: func(victim, _ *corev1.Pod, node string, _ bool) {
			preempted = append(preempted, victim.Name+" on "+node)
		},
	}), &preempted
}

// leaves says who leaves, and from where.
func leaves(c *framework.Preemption) string {
	var out []string
	for _, v := range c.Victims {
		out = append(out, v.Pod.Name+" on "+c.NodeOf(v))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestVictimsOfGroups: pods of a group that says so leave together, wherever they are, or not at all.
func TestVictimsOfGroups(t *testing.T) {
	n1 := schedtest.Node("n1", schedtest.Zone("z"))
	n2 := schedtest.Node("n2", schedtest.Zone("z"))
	n3 := schedtest.Node("n3")
	podOption := schedtest.Labelled("app", "x")
	apart := schedtest.With(func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
				TopologyKey:   corev1.LabelTopologyZone,
			}},
		}}
	})
	kept := budget(map[string]string{"app": "x"}, 0)
	for _, tt := range []struct {
		what    string
		budgets []*policyv1.PodDisruptionBudget
		objs    []any
		pod     *corev1.Pod
		want    string
	}{
		{
			"together", nil,
			[]any{n1, n2, podGroup("w", true, 0), low("a", "n1", 0, "3", ofGroup("w")), low("b", "n2",
				200, "3"), low("c", "n2", 0, "1", ofGroup("w"))},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("3", "")),
			"n1: a on n1, c on n2; 0 reprieved, 0 violations",
		},
		{
			"one by one", nil,
			[]any{n1, n2, podGroup("w", false, 0), low("a", "n1", 0, "3", ofGroup("w")), low("b",
				"n2", 200, "3"), low("c", "n2", 0, "1", ofGroup("w"))},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("3", "")),
			"n1: a on n1; 0 reprieved, 0 violations",
		},
		{
			"a group that has no object", nil,
			[]any{n1, n2, low("a", "n1", 0, "3", ofGroup("w")), low("b", "n2", 200,
				"3"), low("c", "n2", 0, "1", ofGroup("w"))},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("3", "")),
			"n1: a on n1; 0 reprieved, 0 violations",
		},
		{
			"a group is reprieved before a pod", nil,
			[]any{
				n1, podGroup("w", true, 0), low("a", "n1", 0, "2", ofGroup("w"), since(9)),
				low("b", "n1", 0, "2", since(1)),
			},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("2", "")),
			"n1: b on n1; 1 reprieved, 0 violations",
		},
		{
			"what is on other nodes counts", nil,
			[]any{
				n1, n2, n3, podGroup("w", true, 0), low("a", "n1", 0, "4", ofGroup("w"), since(9)),
				low("b", "n2", 0, "4", since(1)), low("c", "n3", 0, "", ofGroup("w")), low("d", "n3", 200, "4"),
			},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("4", "")),
			"n2: b on n2; 0 reprieved, 0 violations",
		},
		{
			"the group's priority counts", nil,
			[]any{n1, podGroup("w", true, 100), low("a", "n1", 0, "3", ofGroup("w"))},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("3", "")),
			"0/1 nodes are available: 1 No preemption victims found for incoming pod.",
		},
		{
			"a budget of one pod protects all",
			[]*policyv1.PodDisruptionBudget{kept},
			[]any{
				n1, n2, podGroup("w", true, 0), low("a", "n1", 0, "3", ofGroup("w")), low("b", "n2", 5, "3"),
				low("c", "n2", 0, "1", ofGroup("w"), podOption),
			},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("3", "")),
			"n2: b on n2; 1 reprieved, 0 violations",
		},
		{
			"a protected group is a last resort",
			[]*policyv1.PodDisruptionBudget{kept},
			[]any{
				n1, n2, podGroup("w", true, 0), low("a", "n1", 0, "3", ofGroup("w")), low("b", "n2", 200, "3"),
				low("c", "n2", 0, "1", ofGroup("w"), podOption),
			},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("3", "")),
			"n1: a on n1, c on n2; 0 reprieved, 1 violations",
		},
		{
			"filters know who leaves elsewhere", nil,
			[]any{
				n1, n2, podGroup("w", true, 0), low("a", "n1", 0, "1", ofGroup("w"), podOption),
				low("b", "n2", 200, "4"),
				low("c", "n2", 0, "", ofGroup("w"), podOption),
			},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("1", ""), apart),
			"n1: a on n1, c on n2; 0 reprieved, 0 violations",
		},
		{
			"who stays elsewhere is in the way", nil,
			[]any{
				n1, n2, podGroup("w", false, 0), low("a", "n1", 0, "1", ofGroup("w"), podOption),
				low("b", "n2", 200, "4"),
				low("c", "n2", 0, "", ofGroup("w"), podOption),
			},
			schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("1", ""), apart),
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod anti-affinity rules.",
		},
	} {
		h, p, preempted := grouped(t, tt.budgets, tt.objs...)
		a := h.Try(tt.pod)
		node, why := p.PostFilter(t.Context(), a)
		got := strings.TrimPrefix(why, "preemption: ")
		if node != "" {
			got = fmt.Sprintf("%s: %s; %d reprieved, %d violations", node, leaves(a.Preemption),
				a.Preemption.Reprieved, a.Preemption.PDBViolations)
			slices.Sort(*preempted)
			if events := strings.Join(*preempted, ", "); events != leaves(a.Preemption) {
				t.Errorf("%s: events %s, want of %s", tt.what, events, leaves(a.Preemption))
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
}

// TestGroupsAreNotRemembered: victims on a node with pods of a group depend on the group's other pods, and are
// not kept.
func TestGroupsAreNotRemembered(t *testing.T) {
	h, p, _ := grouped(t, nil, schedtest.Node("n1"), schedtest.Node("n2"), podGroup("w", true, 0),
		low("a", "n1", 0, "3", ofGroup("w")),
		low("b", "n2", 200, "2"), low("c", "n2", 0, "1", ofGroup("w")))
	for i, want := range []string{"a on n1, c on n2", "a on n1"} {
		h.Cache.RemovePod(types.UID([]string{"", "pod-default-c"}[i]))
		a := h.Try(schedtest.Pod(fmt.Sprint("p", i), schedtest.Priority(100), schedtest.Requests("3", "")))
		if node, why := p.PostFilter(t.Context(), a); node != "n1" || leaves(a.Preemption) != want {
			t.Fatalf("attempt %d: %q (%s), want that %s leave n1", i, node, why, want)
		}
	}
}

// TestGroupsTooFarApart: groups that are spread over very many nodes are not weighed forever.
func TestGroupsTooFarApart(t *testing.T) {
	const nodes = 300
	objs := []any{podGroup("w", true, 0)}
	for i := range nodes {
		name := fmt.Sprint("n", i)
		objs = append(objs, schedtest.Node(name, schedtest.Zone("z")), low(name+"-w", name, 0, "1", ofGroup("w")),
			low(name+"-x", name, 0, "2", schedtest.Labelled("app", "x")))
	}
	h, p, _ := grouped(t, nil, objs...)
	spread := schedtest.With(func(s *corev1.PodSpec) {
		s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew:           1,
			TopologyKey:       corev1.LabelTopologyZone,
			WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "y"}},
		}}
	})
	a := h.Try(schedtest.Pod("p", schedtest.Priority(100), schedtest.Requests("4", ""), spread))
	c, why := p.Choose(a)
	if c == nil {
		t.Fatal(why)
	}
	if c.Candidates >= nodes {
		t.Errorf("%d nodes were weighed", c.Candidates)
	}
	if len(c.Victims) != nodes+1 {
		t.Errorf("%d victims, want the whole group and one pod: %d", len(c.Victims), nodes+1)
	}
}
