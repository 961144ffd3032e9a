// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"keelson/api/apitest"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// pod is a running, ready pod an hour old, as changed by f.
func pod(name string, f ...func(*corev1.Pod)) *corev1.Pod {
	return apitest.Pod(name, append([]func(*corev1.Pod){
		apitest.On("n1"), apitest.Phase(corev1.PodRunning), apitest.Created(now.Add(-time.Hour)),
		apitest.Labels("app", "a"), apitest.Ready, readyFor(time.Hour),
	}, f...)...)
}

func readyFor(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = ago(d) }
}
func unready(p *corev1.Pod)                      { p.Status.Conditions = nil }
func phase(ph corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = ph } }

func node(n string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = n } }

func cost(c string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: c} }
}

func restarts(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: n}} }
}

func aged(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = ago(d) }
}

func going(p *corev1.Pod) {
	t := ago(0)
	p.DeletionTimestamp = &t
}

func set(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:       "rs",
			Namespace:  "default",
			UID:        "rs",
			Generation: 3,
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}}},
		},
	}
}

// Each pair says: the first goes before the second.
func TestVictims(t *testing.T) {
	tests := []struct {
		name          string
		first, second *corev1.Pod
		related       []*corev1.Pod
	}{
		{
			"unassigned before assigned", pod("z", node(""), phase(corev1.PodRunning)),
			pod("a", phase(corev1.PodPending)), nil,
		},
		{"pending before unknown", pod("z", phase(corev1.PodPending)), pod("a", phase(corev1.PodUnknown)), nil},
		{"unknown before running", pod("z", phase(corev1.PodUnknown)), pod("a"), nil},
		{"not ready before ready", pod("z", unready), pod("a", cost("-5")), nil},
		{"lower cost first", pod("z", cost("-5")), pod("a"), nil},
		{"a cost that does not parse is 0", pod("z", cost("x")), pod("a", cost("1")), nil},
		{
			"crowded node first", pod("z", node("n2")), pod("a"), []*corev1.Pod{
				pod("r1", node("n2")), pod("r2", node("n2")), pod("r3"),
			},
		},
		{"ready for less long first", pod("z", readyFor(time.Minute)), pod("a"), nil},
		{"alike ages by UID", pod("a", readyFor(60*time.Minute)), pod("z", readyFor(59*time.Minute)), nil},
		{"more restarts first", pod("z", restarts(3)), pod("a", restarts(1)), nil},
		{"younger first", pod("z", aged(time.Minute)), pod("a"), nil},
		{"else by UID", pod("a"), pod("z"), nil},
	}
	for _, tt := range tests {
		for _, in := range [][]*corev1.Pod{{tt.first, tt.second}, {tt.second, tt.first}} {
			if got := podsToDelete(in, tt.related, 1, now)[0].Name; got != tt.first.Name {
				t.Errorf("%s: from %s, %s: got %s, want %s", tt.name, in[0].Name, in[1].Name, got, tt.first.Name)
			}
		}
	}
}

func TestDecide(t *testing.T) {
	tests := []struct {
		name      string
		replicas  int32
		pods      []*corev1.Pod
		unsettled bool
		deleted   bool
		create    int
		remove    []string
	}{
		{name: "none there", replicas: 2, create: 2},
		{name: "enough", replicas: 1, pods: []*corev1.Pod{pod("a")}},
		{name: "a terminating pod is replaced", replicas: 1, pods: []*corev1.Pod{pod("a", going)}, create: 1},
		{
			name:     "finished pods do not count",
			replicas: 2,
			pods:     []*corev1.Pod{pod("a", phase(corev1.PodFailed)), pod("b", phase(corev1.PodSucceeded))},
			create:   2,
		},
		{name: "one too many", replicas: 1, pods: []*corev1.Pod{pod("a"), pod("b", unready)}, remove: []string{"b"}},
		{name: "all", replicas: 0, pods: []*corev1.Pod{pod("a"), pod("b")}, remove: []string{"a", "b"}},
		{name: "waits while the cache is stale", replicas: 2, unsettled: true},
		{name: "a set being deleted does nothing", replicas: 2, deleted: true},
		{name: "at most a burst", replicas: 5000, create: burst},
	}
	for _, tt := range tests {
		rs := set(tt.replicas)
		if tt.deleted {
			rs.DeletionTimestamp = &metav1.Time{Time: now}
		}
		plan := decide(snapshot{
			set:                   rs,
			pods:                  tt.pods,
			related:               func() []*corev1.Pod { return tt.pods },
			expectationsSatisfied: !tt.unsettled,
			now:                   now,
		})
		var names []string
		for _, v := range plan.remove {
			names = append(names, v.Name)
		}
		if plan.create != tt.create || !cmp.Equal(names, tt.remove) {
			t.Errorf("%s: got create %d, remove %v; want %d, %v", tt.name, plan.create, names, tt.create, tt.remove)
		}
	}
}

func TestStatus(t *testing.T) {
	rs := set(4)
	rs.Spec.MinReadySeconds = 30
	pods := []*corev1.Pod{
		pod("old"), pod("fresh", readyFor(10*time.Second)), pod("unready", unready),
		pod("other", func(p *corev1.Pod) { p.Labels = map[string]string{"x": "y"} }), pod("going", going),
		pod("done", phase(corev1.PodFailed)),
	}
	snap := snapshot{
		set:                   rs,
		pods:                  pods,
		expectationsSatisfied: true,
		countsTerminating:     true,
		now:                   now,
	}
	plan := decide(snap)
	st, next := status(snap, plan, errors.New("quota"))
	one := int32(1)
	want := appsv1.ReplicaSetStatus{
		Replicas:             4,
		FullyLabeledReplicas: 3,
		ReadyReplicas:        3,
		AvailableReplicas:    2,
		TerminatingReplicas:  &one,
		ObservedGeneration:   3,
		Conditions: []appsv1.ReplicaSetCondition{{
			Type:               appsv1.ReplicaSetReplicaFailure,
			Status:             corev1.ConditionTrue,
			Reason:             "FailedCreate",
			Message:            "quota",
			LastTransitionTime: metav1.NewTime(now),
		}},
	}
	if diff := cmp.Diff(want, st); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if next != 20*time.Second {
		t.Errorf("next change in %s, want 20s", next)
	}
	rs.Status = st
	if st, _ = status(snap, plan, nil); len(st.Conditions) != 0 {
		t.Errorf("conditions after success: got %v, want none", st.Conditions)
	}
	if len(rs.Status.Conditions) != 1 {
		t.Error("status modified the set it was given")
	}
}

// Carrying out a plan leads to a state in which there is nothing to do, and never past what is wanted.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := set(rapid.Int32Range(0, 1200).Draw(t, "replicas"))
		pods := make([]*corev1.Pod, rapid.IntRange(0, 1200).Draw(t, "pods"))
		for i := range pods {
			change := rapid.SampledFrom([]func(*corev1.Pod){unready, going, node(""), phase(corev1.PodFailed), phase(
				corev1.PodPending), cost("7"), aged(time.Second)}).Draw(t, "change")
			pods[i] = pod(fmt.Sprintf("p%d", i), change)
		}
		for pass := 0; ; pass++ {
			plan := decide(snapshot{
				set:                   rs,
				pods:                  pods,
				related:               func() []*corev1.Pod { return pods },
				expectationsSatisfied: true,
				now:                   now,
			})
			if plan.create == 0 && len(plan.remove) == 0 {
				if len(plan.active) != desiredReplicas(rs) {
					t.Fatalf("settled at %d pods, want %d", len(plan.active), desiredReplicas(rs))
				}
				return
			}
			if pass > 3 {
				t.Fatalf("pass %d still wants create %d, remove %d", pass, plan.create, len(plan.remove))
			}
			if n := len(plan.active) + plan.create; plan.create > 0 && n > desiredReplicas(rs) {
				t.Fatalf("would have %d pods, want at most %d", n, desiredReplicas(rs))
			}
			for i := range plan.create {
				pods = append(pods, pod(fmt.Sprintf("n%d-%d", pass, i), unready))
			}
			for _, v := range plan.remove {
				going(v)
			}
		}
	})
}

func BenchmarkDecide5000(b *testing.B) {
	pods := make([]*corev1.Pod, 5000)
	for i := range pods {
		pods[i] = pod(fmt.Sprintf("p%d", i), node(fmt.Sprintf("n%d", i%100)))
	}
	s := snapshot{
		set:                   set(5000),
		pods:                  pods,
		related:               func() []*corev1.Pod { return pods },
		expectationsSatisfied: true,
		countsTerminating:     true,
		now:                   now,
	}
	for b.Loop() {
		status(s, decide(s), nil)
	}
}
