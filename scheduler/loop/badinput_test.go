// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// TestBadInput: pods that no API server of today accepts, or that ask for the impossible, get the reason in their
// condition, and a pod of lower priority is bound meanwhile.
func TestBadInput(t *testing.T) {
	strange := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: "Near", Values: []string{"a"}},
	}}
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: strange}
	required := func(ts ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: ts},
		}}
	}
	is := func(op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "x", Operator: op, Values: values},
		}}
	}
	many := func(n int) (ts []corev1.NodeSelectorTerm) {
		for i := range n {
			ts = append(ts, is(corev1.NodeSelectorOpIn, fmt.Sprint(i)))
		}
		return ts
	}
	wide := &metav1.LabelSelector{}
	for i := range 10_000 {
		wide.MatchExpressions = append(wide.MatchExpressions, metav1.LabelSelectorRequirement{
			Key:      fmt.Sprint("k", i),
			Operator: metav1.LabelSelectorOpDoesNotExist,
		})
	}
	spread := func(key string, skew int32, s *metav1.LabelSelector) corev1.TopologySpreadConstraint {
		return corev1.TopologySpreadConstraint{
			TopologyKey:       key,
			MaxSkew:           skew,
			WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector:     s,
		}
	}
	tests := map[string]struct {
		change func(*corev1.PodSpec)
		want   string
	}{
		"affinity": {func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
			}}
		}, `pod affinity: label selector: "Near" is not a valid label selector operator`},
		"anti-affinity": {func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{
					PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
						{Weight: 1, PodAffinityTerm: term},
					},
				},
			}
		}, `preferred pod anti-affinity: label selector: "Near" is not a valid label selector operator`},
		"node-affinity": {
			func(s *corev1.PodSpec) {
				s.Affinity = required(is("Near", "a"), is(corev1.NodeSelectorOpGt, "many"))
			},
			`nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Near"`,
		},
		"half-node-affinity": {func(s *corev1.PodSpec) {
			s.Affinity = required(is("Near", "a"), is(corev1.NodeSelectorOpIn, "b"))
		}, "1 node(s) didn't match Pod's node affinity/selector"},
		"spread": {func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{spread("x", 1, strange)}
		}, `topology spread constraint 0: label selector: "Near" is not a valid label selector operator`},
		"contradiction": {func(s *corev1.PodSpec) { // where the one is met the other is not
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				spread(corev1.LabelHostname, 1, &metav1.LabelSelector{}),
				spread(corev1.LabelHostname, -1, &metav1.LabelSelector{}),
			}
		}, "1 node(s) didn't match pod topology spread constraints"},
		"impossible": {func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Requests[corev1.ResourceCPU] = schedtest.Quantity("9E")
		}, "1 Insufficient cpu"},
		"many-terms": {func(s *corev1.PodSpec) { s.Affinity = required(many(10_000)...) }, "the pod has 20000 rules " +
			"about nodes and other pods, the scheduler looks at no more than 500"},
		"wide-selector": {func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
						{TopologyKey: "x", LabelSelector: wide},
					},
				},
			}
		}, "the pod has 10001 rules"},
		"wide-spread": {func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{spread("x", 1, wide)}
		}, "the pod has 10001 rules"},
		"many-tolerations": {func(s *corev1.PodSpec) {
			s.Tolerations = make([]corev1.Toleration, 501)
		}, "the pod has 501 rules"},
		"many-values": {func(s *corev1.PodSpec) {
			s.Affinity = required(is(corev1.NodeSelectorOpIn, make([]string, 50_000)...))
		}, "the pod has 1564 rules"},
	}
	synctest.Test(t, func(t *testing.T) {
		cluster := start(t, schedtest.Node("node-1"))
		for name, tc := range tests {
			if err := cluster.Tracker().Add(
				schedtest.Pod(name, schedtest.Priority(1000), schedtest.With(tc.change))); err != nil {
				t.Fatal(err)
			}
		}
		// As old objects are: on a node, with rules that nothing reads. It repels no pod.
		if err := cluster.Tracker().Add(
			schedtest.Pod("old", schedtest.On("node-1"), schedtest.With(tests["affinity"].change))); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := cluster.Tracker().Add(schedtest.Pod("good")); err != nil {
			t.Fatal(err)
		}
		cluster.eventually("good", bound)
		if took := time.Since(begin); took > 0 {
			t.Errorf("the good pod waited %v", took)
		}
		for name, tc := range tests {
			cond := scheduledCondition(cluster.eventually(name, func(p *corev1.Pod) bool {
				return scheduledCondition(p) != nil
			}))
			if cond.Reason != corev1.PodReasonUnschedulable || !strings.Contains(cond.Message, tc.want) {
				t.Errorf("%s: condition %s %q, want Unschedulable with %q", name, cond.Reason, cond.Message, tc.want)
			}
		}
	})
}

// vanish has the node go while pod a is on the way to it.
type vanish struct {
	c    *cluster
	once atomic.Bool
}

func (v *vanish) plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:             "Vanish",
		PreBind:          v.PreBind,
		PreBindPreFlight: v.PreBindPreFlight,
	}
}

func (*vanish) PreBindPreFlight(*framework.CycleState, *state.PodInfo, string) bool { return true }

func (v *vanish) PreBind(ctx context.Context, _ *framework.CycleState, pod *state.PodInfo, node string) error {
	if pod.Pod.Name != "a" || !v.once.CompareAndSwap(false, true) {
		return nil
	}
	err := v.c.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{})
	time.Sleep(time.Second) // in the test's time: until all watchers have seen it
	return err
}

// TestNodeVanishes: a pod is not bound to a node that was deleted meanwhile; its condition says so, and it finds
// another.
func TestNodeVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vanish{}
		v.c = startWith(t, with(framework.Registry{"Vanish": made(v.plugin())}), schedtest.Node("node-1"))
		for _, name := range []string{"a", "b"} {
			if err := v.c.Tracker().Add(schedtest.Pod(name)); err != nil {
				t.Fatal(err)
			}
		}
		p := v.c.eventually("a", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil || bound(p) })
		if c := scheduledCondition(p); bound(p) || c == nil || !strings.Contains(c.Message, "node node-1 is gone") {
			t.Errorf("on node %q, condition %+v; want none and why", p.Spec.NodeName, c)
		}
		if _, err := v.c.CoreV1().Nodes().Create(t.Context(), schedtest.Node("node-2"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := v.c.eventually("a", bound).Spec.NodeName; got != "node-2" {
			t.Errorf("bound to %s, want node-2", got)
		}
	})
}
