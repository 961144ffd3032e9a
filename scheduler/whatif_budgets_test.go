// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler"
	"keelson/scheduler/schedtest"
)

// TestWhatIfDrainNotesBudgets: a drain notes the budgets that allow fewer disruptions now than it needs, and no others.
func TestWhatIfDrainNotesBudgets(t *testing.T) {
	budget := func(name string, covers map[string]string, allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: covers}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, DesiredHealthy: 1, CurrentHealthy: 1},
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
	web, all := schedtest.Labelled("app", "web"), schedtest.Labelled("app", "all")
	objs := []runtime.Object{
		schedtest.Node("a"), schedtest.Node("b"), schedtest.Node("c"),
		schedtest.Pod("web-1", schedtest.On("a"), web, of("ReplicaSet")), schedtest.Pod("web-2", schedtest.On("a"), web, of("ReplicaSet")),
		schedtest.Pod("web-3", schedtest.On("b"), web, of("ReplicaSet")), schedtest.Pod("web-4", schedtest.On("c"), web, of("ReplicaSet")),
		schedtest.Pod("agent", schedtest.On("a"), all, of("DaemonSet")), schedtest.Pod("ill", schedtest.On("b"), all, of("ReplicaSet"), notReady),
		schedtest.Pod("starts", schedtest.On("b"), all, of("ReplicaSet"), pending),
		budget("web", map[string]string{"app": "web"}, 2), budget("none", map[string]string{"app": "all"}, 0), elsewhere,
	}
	for _, tt := range []struct {
		question scheduler.Question
		want     []string
	}{
		{scheduler.Question{Drain: []string{"a"}}, nil},
		{scheduler.Question{Drain: []string{"b", "a", "b"}}, []string{"PodDisruptionBudget default/web would hold up the drain: disruptions allowed now: 2, its pods: 2 on a, 1 on b"}},
		{scheduler.Question{Remove: []string{"a", "b"}}, nil},
	} {
		c := clienttest.New(objs...)
		c.Resources = []*metav1.APIResourceList{{GroupVersion: "policy/v1", APIResources: []metav1.APIResource{{Name: "poddisruptionbudgets", Namespaced: true, Kind: "PodDisruptionBudget"}}}}
		answer, err := scheduler.WhatIf(t.Context(), scheduler.Config{Client: &client.Client{Interface: c}, Parallelism: 1}, &tt.question)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(answer.Notes, tt.want) {
			t.Errorf("drain %v: notes %q, want %q", tt.question.Drain, answer.Notes, tt.want)
		}
	}
}
