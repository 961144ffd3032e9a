// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/whatif"
)

// TestWhatIfDrainNotesBudgets: a drain notes the budgets that allow fewer disruptions now than it needs, and no others.
func TestWhatIfDrainNotesBudgets(t *testing.T) {
	budget := func(name string, covers map[string]string, allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: covers}},
			Status: policyv1.PodDisruptionBudgetStatus{
				DisruptionsAllowed: allowed,
				DesiredHealthy:     1,
				CurrentHealthy:     1,
			},
		}
	}
	of := func(kind string) schedtest.PodOption {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: new(true)}}
			p.Status.Phase = corev1.PodRunning
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
	}
	notReady := func(p *corev1.Pod) { p.Status.Conditions = nil }
	pending := func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }
	elsewhere := budget("elsewhere", map[string]string{"app": "web"}, 0)
	elsewhere.Namespace = "other"
	web := schedtest.Labelled("app", "web")
	all := schedtest.Labelled("app", "all")
	objs := []runtime.Object{
		schedtest.Node("a"), schedtest.Node("b"), schedtest.Node("c"),
		schedtest.Pod("web-1", schedtest.On("a"), web, of("ReplicaSet")),
		schedtest.Pod("web-2", schedtest.On("a"), web, of("ReplicaSet")),
		schedtest.Pod("web-3", schedtest.On("b"), web, of("ReplicaSet")),
		schedtest.Pod("web-4", schedtest.On("c"), web, of("ReplicaSet")),
		schedtest.Pod("agent", schedtest.On("a"), all, of("DaemonSet")),
		schedtest.Pod("ill", schedtest.On("b"), all, of("ReplicaSet"), notReady),
		schedtest.Pod("starts", schedtest.On("b"), all, of("ReplicaSet"), pending),
		budget("web", map[string]string{"app": "web"}, 2), budget("none", map[string]string{"app": "all"}, 0),
		elsewhere,
	}
	for _, tt := range []struct {
		question whatif.Question
		want     []string
	}{
		{whatif.Question{Drain: []string{"a"}}, nil},
		{
			whatif.Question{Drain: []string{"b", "a", "b"}},
			[]string{
				"PodDisruptionBudget default/web would hold up the drain: disruptions allowed now: 2, its pods: 2 on " +
					"a, 1 on b",
			},
		},
		{whatif.Question{Remove: []string{"a", "b"}}, nil},
	} {
		c := clienttest.New(objs...)
		c.Resources = []*metav1.APIResourceList{
			{
				GroupVersion: "policy/v1",
				APIResources: []metav1.APIResource{
					{Name: "poddisruptionbudgets", Namespaced: true, Kind: "PodDisruptionBudget"},
				},
			},
		}
		answer, err := whatif.Ask(t.Context(),
			whatif.Config{Client: &client.Client{Interface: client.Plain(c)}, Parallelism: 1}, &tt.question)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(answer.Notes, tt.want) {
			t.Errorf("drain %v: notes %q, want %q", tt.question.Drain, answer.Notes, tt.want)
		}
	}
}

// TestWhatIfDrainGivesNoHintToUncordon: a pod that finds no node is not advised to use the drained one, but another
// node that is cordoned.
func TestWhatIfDrainGivesNoHintToUncordon(t *testing.T) {
	ofSet := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "x", Controller: new(true)}}
	}
	a := schedtest.Node("a")
	full := schedtest.Node("full", schedtest.Allocatable(corev1.ResourceCPU, "1"))
	cordoned := schedtest.Node("z", schedtest.Cordoned())
	for _, tt := range []struct {
		what string
		objs []runtime.Object
		want string
	}{
		{"alone", []runtime.Object{a}, ""},
		{"another node is too small", []runtime.Object{a, full}, "fits on full if cpu request <= 1"},
		{"another node is cordoned", []runtime.Object{a, cordoned}, "uncordon z"},
	} {
		objs := append(tt.objs, schedtest.Pod("p", schedtest.On("a"), schedtest.Requests("2", ""), ofSet))
		for _, objs := range [][]runtime.Object{objs, append(schedtest.Members("g", 1, "2"), append(objs, schedtest.Gang("g", 1))...)} {
			_, answer := whatIf(t, whatif.Question{Drain: []string{"a"}}, "", nil, objs...)
			if len(answer.Outcomes) == 0 {
				t.Errorf("%s: no pod was tried", tt.what)
			}
			for _, o := range answer.Outcomes {
				if got := strings.Join(o.Decision.Fixes, "; "); o.Node != "" || got != tt.want {
					t.Errorf("%s: %s -> %q, hints %q, want %q", tt.what, o.Name, o.Node, got, tt.want)
				}
				for _, v := range o.Decision.Refusals {
					if v.Node == "a" && (v.Hint != "" || v.Nearest) {
						t.Errorf("%s: the drained node is nearest: %+v", tt.what, v)
					}
				}
			}
		}
	}
}
