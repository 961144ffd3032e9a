// SPDX-License-Identifier: Apache-2.0

package preempt_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/preempt"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

func low(name, node string, prio int32, cpu string, o ...schedtest.PodOption) *corev1.Pod {
	return schedtest.Pod(name, append(o, schedtest.On(node), schedtest.Priority(prio), schedtest.Requests(cpu, ""))...)
}

func since(sec int64) schedtest.PodOption {
	return func(p *corev1.Pod) { p.Status.StartTime = new(metav1.NewTime(time.Unix(1_800_000_000+sec, 0))) }
}

func budget(labels map[string]string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: labels},
			MinAvailable: new(intstr.FromInt32(1)),
		},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
}

func TestChoose(t *testing.T) {
	n1 := schedtest.Node("n1")
	n2 := schedtest.Node("n2")
	high := func(cpu string, o ...schedtest.PodOption) *corev1.Pod {
		return schedtest.Pod("high", append(o, schedtest.Priority(100), schedtest.Requests(cpu, ""))...)
	}
	tests := []struct {
		name    string
		cluster []any
		budgets []*policyv1.PodDisruptionBudget
		pod     *corev1.Pod
		want    string // "node: victim victim", or the reason
	}{
		{"one victim", []any{n1, low("a", "n1", 0, "4")}, nil, high("1"), "n1: a"},
		{
			"spares what it can, the more important first", []any{
				n1, low("a", "n1", 5, "1"), low("b", "n1", 0, "1"), low("c", "n1", 1, "2"),
			}, nil, high("1"), "n1: b",
		},
		{
			"spares who has run for longer", []any{n1, low("old", "n1", 0, "2", since(1)), low("young", "n1", 0, "2",
				since(2))}, nil, high("2"), "n1: young",
		},
		{
			"node with the lowest victim",
			[]any{n1, n2, low("a", "n1", 5, "4"), low("b", "n2", 1, "4")},
			nil,
			high("1"), "n2: b",
		},
		{
			"node with fewer victims", []any{n1, n2, low("a", "n1", 1, "2"), low("b", "n1", 1, "2"), low("c", "n2", 1,
				"4")}, nil, high("4"), "n2: c",
		},
		{
			"node whose victim is youngest", []any{
				n1, n2, low("a", "n1", 1, "4", since(1)), low("b", "n2", 1, "4", since(2)),
			}, nil, high("4"), "n2: b",
		},
		{
			"node without violated budget",
			[]any{n1, n2, low("a", "n1", 0, "4", schedtest.Labelled("app", "x")), low("b", "n2", 9, "4")},
			[]*policyv1.PodDisruptionBudget{budget(map[string]string{"app": "x"}, 0)},
			high("4"), "n2: b",
		},
		{
			"budget of the whole namespace, with pods that have no labels",
			[]any{n1, n2, low("a", "n1", 0, "4"), low("b", "n2", 9, "4", schedtest.In("other"))},
			[]*policyv1.PodDisruptionBudget{budget(nil, 0)},
			high("4"), "n2: b",
		},
		{
			"budget without a selector",
			[]any{n1, n2, low("a", "n1", 0, "4"), low("b", "n2", 9, "4")},
			[]*policyv1.PodDisruptionBudget{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
				Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))},
			}},
			high("4"), "n1: a",
		},
		{
			"budget that allows",
			[]any{n1, n2, low("a", "n1", 0, "4", schedtest.Labelled("app", "x")), low("b", "n2", 9, "4")},
			[]*policyv1.PodDisruptionBudget{budget(map[string]string{"app": "x"}, 1)},
			high("4"), "n1: a",
		},
		{
			"protected is reprieved first",
			[]any{n1, low("a", "n1", 0, "2", schedtest.Labelled("app", "x")), low("b", "n1", 9, "2")},
			[]*policyv1.PodDisruptionBudget{budget(map[string]string{"app": "x"}, 0)},
			high("2"), "n1: b",
		},
		{
			"no pod is less important",
			[]any{n1, low("a", "n1", 100, "4")},
			nil, high("1"),
			"0/1 nodes are available: 1 No preemption victims found for incoming pod.",
		},
		{
			"asks for more than there is",
			[]any{n1, low("a", "n1", 0, "4")},
			nil, high("5"),
			"0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		{
			"some of each",
			[]any{n1, n2, schedtest.Node("n3", schedtest.Cordoned()), low("a", "n1", 100, "4"), low(
				"b", "n2", 100, "4")},
			nil, high("1"),
			"0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for " +
				"incoming pod.",
		},
		{
			"removing all does not help",
			[]any{n1, low("a", "n1", 100, "3"), low("b", "n1", 0, "1")},
			nil, high("2"),
			"0/1 nodes are available: 1 Insufficient cpu.",
		},
		{
			"its anti-affinity leaves with the victim",
			[]any{n1, low("a", "n1", 0, "1", schedtest.With(func(s *corev1.PodSpec) {
				s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
						{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}},
					},
				}}
			}))},
			nil, high("1"), "n1: a",
		},
		{
			"spread allows it once the victim has left",
			[]any{n1, n2, low("a", "n1", 0, "1", schedtest.Labelled("app", "x")), low("b", "n2", 100, "4")},
			nil,
			high("1", schedtest.Labelled("app", "x"), schedtest.With(func(s *corev1.PodSpec) {
				s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
					MaxSkew:           1,
					TopologyKey:       corev1.LabelHostname,
					WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
				}}
			})), "n1: a",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			h := schedtest.New(1, 1)
			h.Add(tc.cluster...)
			a := h.Try(tc.pod)
			if a.Chosen != nil {
				t.Fatalf("fits on %s as it is", a.Chosen.Name)
			}
			c, got := preempt.Choose(a, tc.budgets)
			if c != nil {
				names := make([]string, len(c.Victims))
				for i, v := range c.Victims {
					names[i] = v.Pod.Name
				}
				got = c.Node + ": " + strings.Join(names, " ")
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPluginNotifiesVictimsAndWaits(t *testing.T) {
	victim := low("a", "n1", 0, "4")
	cs := clienttest.New(victim)
	var jobs []func(context.Context)
	var said []string
	plugin := preempt.New(preempt.Config{
		Client:          client.Plain(cs),
		Log:             slog.New(slog.DiscardHandler),
		Later:           func(_ context.Context, job func(context.Context)) { jobs = append(jobs, job) },
		RecordPreempted: func(v, _ *corev1.Pod, node string, _ bool) { said = append(said, v.Name+" on "+node) },
	})
	harness := schedtest.New(1, 1)
	harness.Add(schedtest.Node("n1"), victim)
	high := schedtest.Pod("high", schedtest.Priority(100), schedtest.Requests("1", ""))
	node, found := plugin.PostFilter(t.Context(), harness.Try(high))
	if node != "n1" || len(jobs) != 1 ||
		found != "preemption: found a potential placement for pod on node n1, preempting 1 victims" {
		t.Fatalf("node %q with %d jobs, %q; want n1 with 1 and its victims", node, len(jobs), found)
	}
	// Tried again before the victims' status is written: nothing more happens.
	attempt := harness.Try(high)
	attempt.NominatedBefore = "n1"
	if node, _ := plugin.PostFilter(t.Context(), attempt); node != "n1" || len(jobs) != 1 {
		t.Fatalf("again: node %q with %d jobs, want n1 with 1", node, len(jobs))
	}
	jobs[0](t.Context())
	var verbs []string
	for _, act := range cs.Actions() {
		verbs = append(verbs, act.GetVerb()+" "+act.GetSubresource())
	}
	if got := strings.Join(verbs, ","); got != "patch status,delete " || len(said) != 1 || said[0] != "a on n1" {
		t.Errorf("actions %q, events %q; want the condition patched, then the delete, and one event", got, said)
	}
	// While the victim is leaving the pod waits for it.
	leaving := victim.DeepCopy()
	leaving.DeletionTimestamp = new(metav1.Now())
	leaving.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler},
	}
	harness.Add(leaving)
	attempt = harness.Try(high)
	attempt.NominatedBefore = "n1"
	node, message := plugin.PostFilter(t.Context(), attempt)
	if want := "preemption: not eligible due to a terminating pod on the nominated node."; node != "n1" ||
		message != want || len(jobs) != 1 {
		t.Errorf("node %q, message %q, %d jobs; want n1, %q, 1", node, message, len(jobs), want)
	}
	never := high.DeepCopy()
	never.UID = "never"
	never.Spec.PreemptionPolicy = new(corev1.PreemptNever)
	if node, message := plugin.PostFilter(t.Context(), harness.Try(never)); node != "" ||
		message != "preemption: not eligible due to preemptionPolicy=Never." {
		t.Errorf("policy Never: node %q, message %q", node, message)
	}
}

// newFullCluster returns a cluster whose nodes are full of unimportant pods, and a plugin whose victims go at once.
func newFullCluster(tb testing.TB, nodes int) (*schedtest.Harness, *preempt.Plugin) {
	tb.Helper()
	h := schedtest.New(1, 1)
	for i := range nodes {
		name := fmt.Sprint("n", i)
		h.Add(schedtest.Node(name))
		for j := range 4 {
			h.Add(low(fmt.Sprintf("%s-%d", name, j), name, 0, "900m", since(int64(i%7))))
		}
	}
	clientset := clienttest.New()
	return h, preempt.New(preempt.Config{
		Client:                      client.Plain(clientset),
		MinCandidateNodesPercentage: 10,
		MinCandidateNodesAbsolute:   100,
		Log:                         slog.New(slog.DiscardHandler),
		Later:                       func(context.Context, func(context.Context)) {},
		RecordPreempted:             func(*corev1.Pod, *corev1.Pod, string, bool) {},
	})
}

// preemptFor has a pod preempt others and returns its node and victims.
func preemptFor(
	tb testing.TB, harness *schedtest.Harness, p *preempt.Plugin, pod *corev1.Pod,
) (node string, victims []string) {
	tb.Helper()
	a := harness.Try(pod)
	node, why := p.PostFilter(tb.Context(), a)
	if node == "" {
		tb.Fatalf("%s: %s", pod.Name, why)
	}
	for _, v := range a.Preemption.Victims {
		harness.Cache.RemovePod(v.Pod.UID)
		victims = append(victims, v.Pod.Name)
	}
	if got := harness.Place(pod); got != node {
		tb.Fatalf("%s: room was made on %s, it goes to %q", pod.Name, node, got)
	}
	return node, victims
}

// TestCachedVictims: pods of one kind that come one after the other preempt those that a plugin without a cache finds,
// while nodes fill, empty and change.
func TestCachedVictims(t *testing.T) {
	harness, plugin := newFullCluster(t, 40)
	for i := range 40 {
		pod := schedtest.Pod(fmt.Sprint("high-", i), schedtest.Priority(10), schedtest.Requests("3", "500Mi"))
		node, got := preemptFor(t, harness, plugin, pod)
		harness.Cache.RemovePod(pod.UID)
		for _, v := range got { // restore them
			harness.Add(low(v, node, 0, "900m", since(int64(i%5))))
		}
		a := harness.Try(pod)
		c, why := preempt.Choose(a, nil)
		if c == nil {
			t.Fatalf("attempt %d: %s", i, why)
		}
		known, _ := plugin.PostFilter(t.Context(),
			harness.Try(schedtest.Pod(fmt.Sprint("again-", i), schedtest.Priority(10),
				schedtest.Requests("3", "500Mi"))))
		// With fewer nodes than are tried at least, both choose among all: any of the equal ones.
		if x, y := cachedVictims(t, harness, known), cachedVictims(t, harness, c.Node); x != y {
			t.Errorf("attempt %d: with a memory %s (%s), without %s (%s)", i, known, x, c.Node, y)
		}
		switch i % 3 {
		case 0:
			harness.Add(low(fmt.Sprint("more-", i), node, 0, "100m", since(20)))
		case 1:
			harness.Add(schedtest.Node(node, schedtest.Allocatable(corev1.ResourceCPU, "5")))
		}
	}
}

// TestCachedBudgets: a node's cached victims hold while budgets change that cover none of its pods, and not when one
// covers them or allows another number.
func TestCachedBudgets(t *testing.T) {
	harness := schedtest.New(1, 1)
	harness.Add(schedtest.Node("n1"), low("a", "n1", 0, "4", schedtest.Labelled("app", "x")), schedtest.Node("n2"),
		low("b", "n2", 5, "4", schedtest.Labelled("app", "y")))
	var budgets []*policyv1.PodDisruptionBudget
	plugin := preempt.New(preempt.Config{
		Client:                      client.Plain(clienttest.New()),
		MinCandidateNodesPercentage: 10,
		MinCandidateNodesAbsolute:   100,
		Log:                         slog.New(slog.DiscardHandler),
		Budgets:                     func() []*policyv1.PodDisruptionBudget { return budgets },
		Later:                       func(context.Context, func(context.Context)) {},
	})
	of := func(app string, generation int64, allowed int32) *policyv1.PodDisruptionBudget {
		b := budget(map[string]string{"app": app}, allowed)
		b.Name = app
		b.Generation = generation
		return b
	}
	elsewhere := of("x", 1, 0)
	elsewhere.Namespace = "elsewhere"
	for i, step := range []struct {
		budgets []*policyv1.PodDisruptionBudget
		want    string
	}{
		{nil, "n1"},
		{[]*policyv1.PodDisruptionBudget{of("z", 1, 0)}, "n1"},
		{[]*policyv1.PodDisruptionBudget{elsewhere}, "n1"},
		{[]*policyv1.PodDisruptionBudget{of("x", 1, 0)}, "n2"},
		{[]*policyv1.PodDisruptionBudget{of("x", 1, 1)}, "n1"},
		{[]*policyv1.PodDisruptionBudget{of("x", 1, 0)}, "n2"},
		{[]*policyv1.PodDisruptionBudget{of("x", 1, 0), of("y", 1, 0)}, "n1"},
		{[]*policyv1.PodDisruptionBudget{of("y", 1, 0)}, "n1"},
		{nil, "n1"},
	} {
		budgets = step.budgets
		a := harness.Try(schedtest.Pod(fmt.Sprint("high-", i), schedtest.Priority(10), schedtest.Requests("4", "")))
		if got, why := plugin.PostFilter(t.Context(), a); got != step.want {
			t.Errorf("step %d: %q (%s), want %s", i, got, why, step.want)
		}
	}
}

// TestEvictions: a preemptor waits until its victims are notified and gone.
func TestEvictions(t *testing.T) {
	victim := low("a", "n1", 0, "4")
	cs := clienttest.New(victim)
	var jobs []func(context.Context)
	ended := 0
	evictions := preempt.NewEvictions()
	plugin := preempt.New(preempt.Config{
		Client:          client.Plain(cs),
		Log:             slog.New(slog.DiscardHandler),
		Evictions:       evictions,
		Later:           func(_ context.Context, job func(context.Context)) { jobs = append(jobs, job) },
		RecordPreempted: func(*corev1.Pod, *corev1.Pod, string, bool) {},
		EvictionsDone:   func(*corev1.Pod, error) { ended++ },
	})
	h := schedtest.New(1, 1)
	absent := low("b", "n1", 0, "1")
	h.Add(schedtest.Node("n1", schedtest.Allocatable(corev1.ResourceCPU, "5")), victim, absent)
	high := schedtest.Pod("high", schedtest.Priority(100), schedtest.Requests("5", ""))
	if node, why := plugin.PostFilter(t.Context(), h.Try(high)); node != "n1" || len(jobs) != 2 {
		t.Fatalf("node %q (%s) with %d jobs, want n1 with 2", node, why, len(jobs))
	}
	jobs[0](t.Context())
	if !evictions.Pending(high.UID) || ended != 0 {
		t.Error("it waits no more while a victim is still to be notified")
	}
	jobs[1](t.Context())
	if !evictions.Pending(high.UID) || ended != 1 {
		t.Errorf("it waits no more while a victim is there, or EvictionsDone was called %d times, want once", ended)
	}
	evictions.VictimGone(victim.UID)
	if evictions.Pending(high.UID) {
		t.Error("it waits for a victim that is gone, or was gone when it was notified")
	}
	evictions.VictimGone(victim.UID)
	evictions.Forget(high.UID)
}

// BenchmarkNominated is an attempt that finds no node in a cluster where all room is kept for other preemptors.
func BenchmarkNominated(b *testing.B) {
	h := schedtest.New(1, 1)
	for i := range 5000 {
		name := fmt.Sprint("n", i)
		h.Add(schedtest.Node(name))
		h.Cache.Nominate(state.NewPodInfo(schedtest.Pod(fmt.Sprint("kept-", i), schedtest.Priority(10),
			schedtest.Requests("3", ""))), name)
	}
	for i := 0; b.Loop(); i++ {
		pod := schedtest.Pod(fmt.Sprint("high-", i), schedtest.Priority(10), schedtest.Requests("3", ""))
		if a := h.Try(pod); a.Chosen != nil {
			b.Fatal("it takes what is kept")
		}
	}
}

// cachedVictims returns what decides between candidates: how many pods of a node have to go, and since when the first
// of them has run.
func cachedVictims(t *testing.T, h *schedtest.Harness, node string) string {
	t.Helper()
	a := h.Try(schedtest.Pod("probe", schedtest.Priority(10), schedtest.Requests("3", "500Mi"),
		schedtest.With(func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{corev1.LabelHostname: node}
		})))
	c, why := preempt.Choose(a, nil)
	if c == nil {
		t.Fatalf("%s: %s", node, why)
	}
	first := c.Victims[0].Pod.Status.StartTime.Unix()
	for _, v := range c.Victims {
		first = min(first, v.Pod.Status.StartTime.Unix())
	}
	return fmt.Sprintf("%d victims since %d", len(c.Victims), first)
}

// BenchmarkPreempt reports preemptors per second on 5,000 full nodes of four pods, of which three have to go: the
// attempt that makes room, and the one that takes it.
func BenchmarkPreempt(b *testing.B) {
	const pods = 1000
	for b.Loop() {
		b.StopTimer()
		h, p := newFullCluster(b, 5000)
		b.StartTimer()
		for i := range pods {
			preemptFor(b, h, p, schedtest.Pod(fmt.Sprint("high-", i), schedtest.Priority(10),
				schedtest.Requests("3", "500Mi")))
		}
	}
	b.ReportMetric(float64(pods*b.N)/b.Elapsed().Seconds(), "pods/s")
}
