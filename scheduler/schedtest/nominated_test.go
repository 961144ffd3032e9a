// SPDX-License-Identifier: Apache-2.0

package schedtest_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// TestNominatedNodeFirst: a pod goes to its nominated node if it fits there, whatever the scores of others; else to the
// best of all.
func TestNominatedNodeFirst(t *testing.T) {
	pod := schedtest.Pod("p", schedtest.Requests("2", ""), schedtest.Priority(5))
	for _, tt := range []struct {
		what      string
		nominated string // the node
		objs      []any
		other     *corev1.Pod // that is nominated to the same node
		want      string
	}{
		{"it is not nominated", "", nil, nil, "free"},
		{"it fits, and scores less", "busy", nil, nil, "busy"},
		{
			"the node is full", "busy",
			[]any{schedtest.Pod("q", schedtest.On("busy"), schedtest.Requests("2", ""))},
			nil, "free",
		},
		{"the node is cordoned", "busy", []any{schedtest.Node("busy", schedtest.Cordoned())}, nil, "free"},
		{"there is no such node", "gone", nil, nil, "free"},
		{
			"another one of no less priority makes room there", "busy", nil,
			schedtest.Pod("o", schedtest.Requests("2", ""), schedtest.Priority(5)), "free",
		},
		{
			"another one of less priority makes room there", "busy", nil,
			schedtest.Pod("o", schedtest.Requests("2", ""), schedtest.Priority(4)), "busy",
		},
	} {
		// nodes that are too small: with more than a few a single node is not scored
		for _, more := range []int{0, 30} {
			t.Run(fmt.Sprint(tt.what, more), func(t *testing.T) {
				harness := schedtest.New(1, 1)
				harness.Add(schedtest.Node("busy"), schedtest.Node("free"),
					schedtest.Pod("x", schedtest.On("busy"), schedtest.Requests("1", "")))
				for i := range more {
					harness.Add(schedtest.Node(fmt.Sprint("small-", i), schedtest.Allocatable(corev1.ResourceCPU, "1")))
				}
				harness.Add(tt.objs...)
				if tt.nominated != "" {
					harness.Cache.Nominate(state.NewPodInfo(pod), tt.nominated)
				}
				if tt.other != nil {
					harness.Cache.Nominate(state.NewPodInfo(tt.other), tt.nominated)
				}
				a := harness.Try(pod)
				if a.Chosen == nil || a.Chosen.Name != tt.want {
					t.Fatalf("got %v, want %s", a.Chosen, tt.want)
				}
				if tt.want == tt.nominated && (len(a.Feasible) != 1 || a.EvaluatedNodes != 1) {
					t.Errorf("%d nodes filtered, %d feasible, want 1 and 1", a.EvaluatedNodes, len(a.Feasible))
				}
			})
		}
	}
}

// TestNominatedNodeIsFilteredByAll: filters that depend on other nodes count too.
func TestNominatedNodeIsFilteredByAll(t *testing.T) {
	h := schedtest.New(1, 1)
	h.Add(schedtest.Node("a", schedtest.Zone("z1")), schedtest.Node("b", schedtest.Zone("z1")),
		schedtest.Node("c", schedtest.Zone("z2")),
		schedtest.Pod("x", schedtest.On("b"), schedtest.Labelled("app", "x")))
	pod := schedtest.Pod("p", schedtest.Labelled("app", "x"), schedtest.With(func(s *corev1.PodSpec) {
		s.TopologySpreadConstraints = spreadByZone()
	}))
	h.Cache.Nominate(state.NewPodInfo(pod), "a")
	if a := h.Try(pod); a.Chosen == nil || a.Chosen.Name != "c" {
		t.Errorf("got %v, want c: a's zone has one already", a.Chosen)
	}
}

func spreadByZone() []corev1.TopologySpreadConstraint {
	return []corev1.TopologySpreadConstraint{{
		MaxSkew:           1,
		TopologyKey:       corev1.LabelTopologyZone,
		WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
	}}
}
