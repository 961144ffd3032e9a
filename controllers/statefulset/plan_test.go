// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newSet(replicas int32, f ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	partition := int32(0)
	one := intstr.FromInt32(1)
	l := map[string]string{"app": "web"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:       "web",
			Namespace:  "default",
			UID:        "web",
			Generation: 1,
		},
		Spec: appsv1.StatefulSetSpec{
			Replicas:            &replicas,
			ServiceName:         "svc",
			Selector:            &metav1.LabelSelector{MatchLabels: l},
			PodManagementPolicy: appsv1.OrderedReadyPodManagement,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				Type:          appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition, MaxUnavailable: &one},
			},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}},
		},
	}
	for _, g := range f {
		g(set)
	}
	return set
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }

func onDelete(s *appsv1.StatefulSet) {
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
}

func partitioned(n int32) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = &n }
}

func mayMiss(v string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		x := intstr.Parse(v)
		s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = &x
	}
}

func startsAt(n int32) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: n} }
}

func withClaims(onDeleted, onScaled appsv1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: onDeleted,
			WhenScaled:  onScaled,
		}
	}
}

// podOf is pod n of the set, made from the revision "new", ready for an hour unless f says otherwise.
func podOf(s *appsv1.StatefulSet, n int, f ...func(*corev1.Pod)) *corev1.Pod {
	pod := newPod(s, &s.Spec.Template, "new", n)
	pod.UID = types.UID(pod.Name)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{
			{
				Type:               corev1.PodReady,
				Status:             corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
			},
		},
	}
	for _, g := range f {
		g(pod)
	}
	return pod
}

func old(p *corev1.Pod)     { p.Labels[appsv1.StatefulSetRevisionLabel] = "old" }
func unready(p *corev1.Pod) { p.Status.Conditions = nil }
func going(p *corev1.Pod)   { p.DeletionTimestamp = &metav1.Time{Time: now} }
func failed(p *corev1.Pod) {
	p.Status.Phase = corev1.PodFailed
	p.Status.Conditions = nil
}

func ended(p *corev1.Pod) {
	p.Status.Phase = corev1.PodSucceeded
	p.Status.Conditions = nil
}

func pending(p *corev1.Pod) {
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = nil
}

func unknown(p *corev1.Pod) {
	p.Status.Phase = corev1.PodUnknown
	p.Status.Conditions = nil
}

func unlabelled(p *corev1.Pod) {
	delete(p.Labels, appsv1.StatefulSetPodNameLabel)
}

func readyFor(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-d)) }
}

var verbs = map[verb]string{
	create:          "create",
	remove:          "remove",
	restoreIdentity: "identify",
	createClaims:    "claims",
	setClaimOwners:  "own",
}

// inWords is a plan in words: stages apart by "|".
func inWords(p plan) string {
	var stages []string
	for _, stage := range p.stages {
		var acts []string
		for _, a := range stage {
			acts = append(acts, strings.TrimSpace(fmt.Sprintf("%s %d %s", verbs[a.verb], a.n, a.revision)))
		}
		stages = append(stages, strings.Join(acts, ", "))
	}
	return strings.Join(stages, " | ")
}

func snap(s *appsv1.StatefulSet, claims map[string]*corev1.PersistentVolumeClaim, pods ...*corev1.Pod) snapshot {
	return snapshot{
		set:                   s,
		pods:                  pods,
		claim:                 func(name string) *corev1.PersistentVolumeClaim { return claims[name] },
		current:               "old",
		update:                "new",
		expectationsSatisfied: true,
		now:                   now,
	}
}

func TestDecide(t *testing.T) {
	three := newSet(3)
	many := newSet(3, parallel)
	tests := []struct {
		name string
		set  *appsv1.StatefulSet
		pods []*corev1.Pod
		want string
	}{
		{"the first first", three, nil, "create 0 new"},
		{"the next when the one before is ready", three, []*corev1.Pod{podOf(three, 0)}, "create 1 new"},
		{"not while it is unready", three, []*corev1.Pod{podOf(three, 0, unready)}, ""},
		{"nor while it terminates", three, []*corev1.Pod{podOf(three, 0, going)}, ""},
		{"nor while its node is lost", three, []*corev1.Pod{podOf(three, 0, unknown)}, ""},
		{"a gap is filled", three, []*corev1.Pod{podOf(three, 0), podOf(three, 2)}, "create 1 new"},
		{"parallel: all that are missing", many, []*corev1.Pod{podOf(many, 1, unready)}, "create 0 new, create 2 new"},
		{
			"parallel: a terminating pod keeps its name", many, []*corev1.Pod{
				podOf(many, 0, going), podOf(many, 1, unknown),
			}, "create 2 new",
		},
		{"a failed pod is replaced", three, []*corev1.Pod{podOf(three, 0, failed)}, "remove 0"},
		{"so is one that succeeded", three, []*corev1.Pod{podOf(three, 0, ended)}, "remove 0"},
		{"once", three, []*corev1.Pod{podOf(three, 0, failed, going)}, ""},
		{
			"not available for minReadySeconds", newSet(3, func(s *appsv1.StatefulSet) {
				s.Spec.MinReadySeconds = 30
			}), []*corev1.Pod{podOf(three, 0, readyFor(10*time.Second))}, "",
		},
		{
			"available after minReadySeconds", newSet(3, func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = 30 }),
			[]*corev1.Pod{podOf(three, 0, readyFor(time.Minute))},
			"create 1 new",
		},
		{"ordinals from 5", newSet(2, startsAt(5)), []*corev1.Pod{podOf(three, 5)}, "create 6 new"},
		{
			"a changed start moves the range", newSet(2, startsAt(1)), []*corev1.Pod{
				podOf(three, 0), podOf(three, 1), podOf(three, 2),
			}, "remove 0",
		},
		{
			"the label of the name comes back", three, []*corev1.Pod{
				podOf(three, 0, unlabelled), podOf(three, 1), podOf(three, 2),
			}, "identify 0",
		},

		{
			"scale down: the last first", newSet(1),
			[]*corev1.Pod{podOf(three, 0), podOf(three, 1), podOf(three, 2)},
			"remove 2",
		},
		{
			"not while one terminates", newSet(1), []*corev1.Pod{
				podOf(three, 0), podOf(three, 1), podOf(three, 2, going),
			}, "",
		},
		{
			"not while a wanted pod is unready", newSet(1), []*corev1.Pod{
				podOf(three, 0, unready), podOf(three, 1), podOf(three, 2),
			}, "",
		},
		{
			"not while one before it is unready", newSet(1), []*corev1.Pod{
				podOf(three, 0), podOf(three, 1, unready), podOf(three, 2),
			}, "remove 2",
		},
		{
			"the last unready one is held up by another", newSet(1), []*corev1.Pod{
				podOf(three, 0), podOf(three, 1, unready), podOf(three, 2, unready),
			}, "",
		},
		{
			"the only unready one goes", newSet(1), []*corev1.Pod{
				podOf(three, 0), podOf(three, 1), podOf(three, 2, unready),
			}, "remove 2",
		},
		{
			"failed ones hold up no pod", newSet(1), []*corev1.Pod{
				podOf(three, 0), podOf(three, 1, failed), podOf(three, 2, failed),
			}, "remove 2",
		},
		{
			"parallel: all at once", newSet(1, parallel), []*corev1.Pod{
				podOf(three, 0, unready), podOf(three, 1), podOf(three, 2),
			}, "remove 2, remove 1",
		},
		{
			"parallel: unwanted pods go before missing ones are created", newSet(2, parallel), []*corev1.Pod{
				podOf(three, 1), podOf(three, 2), podOf(three, 3),
			}, "remove 3, remove 2 | create 0 new",
		},
		{
			"ordered: missing pods are created before unwanted ones go", newSet(2), []*corev1.Pod{
				podOf(three, 1), podOf(three, 2), podOf(three, 3),
			}, "create 0 new",
		},
		{"to nothing", newSet(0), []*corev1.Pod{podOf(three, 0), podOf(three, 1)}, "remove 1"},

		{
			"update: the last first", three, []*corev1.Pod{
				podOf(three, 0, old), podOf(three, 1, old), podOf(three, 2, old),
			}, "remove 2",
		},
		{
			"update: the next when it is ready", three, []*corev1.Pod{
				podOf(three, 0, old), podOf(three, 1, old), podOf(three, 2),
			}, "remove 1",
		},
		{
			"update: waits for it", three, []*corev1.Pod{
				podOf(three, 0, old), podOf(three, 1, old), podOf(three, 2, unready),
			}, "",
		},
		{
			"partition", newSet(3, partitioned(2)), []*corev1.Pod{
				podOf(three, 0, old), podOf(three, 1, old), podOf(three, 2),
			}, "",
		},
		{
			"below the partition pods come back old", newSet(3, partitioned(2)), []*corev1.Pod{
				podOf(three, 1, old), podOf(three, 2),
			}, "create 0 old",
		},
		{
			"above it new", newSet(3, partitioned(2)),
			[]*corev1.Pod{podOf(three, 0, old), podOf(three, 1, old)},
			"create 2 new",
		},
		{
			"the partition counts from the start", newSet(2, partitioned(1), startsAt(5)), []*corev1.Pod{
				podOf(three, 5, old), podOf(three, 6, old),
			}, "remove 6",
		},
		{
			"OnDelete deletes none", newSet(3, onDelete), []*corev1.Pod{
				podOf(three, 0, old), podOf(three, 1, old), podOf(three, 2, old),
			}, "",
		},
		{
			"OnDelete creates new ones", newSet(3, onDelete), []*corev1.Pod{
				podOf(three, 0, old), podOf(three, 1, old),
			}, "create 2 new",
		},
		{
			"maxUnavailable 2", newSet(3, mayMiss("2")), []*corev1.Pod{
				podOf(three, 0, old), podOf(three, 1, old), podOf(three, 2, old),
			}, "remove 2, remove 1",
		},
		{
			"maxUnavailable is rounded down, to at least 1", newSet(3, mayMiss("10%")), []*corev1.Pod{
				podOf(three, 0, old), podOf(three, 1, old), podOf(three, 2, old),
			}, "remove 2",
		},
		{
			"parallel: unavailable ones go first, and at once", newSet(3, parallel), []*corev1.Pod{
				podOf(three, 0, old, unready), podOf(three, 1, old), podOf(three, 2, old),
			}, "remove 0",
		},
		{
			"parallel: within the budget", newSet(3, parallel, mayMiss("2")), []*corev1.Pod{
				podOf(three, 0, old, unready), podOf(three, 1, old), podOf(three, 2, old),
			}, "remove 0, remove 2",
		},
		{
			"parallel: a broken pod below the partition does not stop the update", newSet(3, parallel, partitioned(1)),
			[]*corev1.Pod{podOf(three, 0, old, unready), podOf(three, 1, old), podOf(three, 2, old)},
			"remove 2",
		},
		{
			"parallel: one that is being updated counts", newSet(3, parallel, partitioned(1)),
			[]*corev1.Pod{podOf(three, 0, old), podOf(three, 1, old), podOf(three, 2, unready)},
			"",
		},
		{
			"scaling comes before updates", newSet(1),
			[]*corev1.Pod{podOf(three, 0, old), podOf(three, 1, old)},
			"remove 1",
		},
		{
			"a set that is deleted does nothing", newSet(3, func(s *appsv1.StatefulSet) {
				s.DeletionTimestamp = &metav1.Time{Time: now}
			}), nil, "",
		},
	}
	for _, tt := range tests {
		if got := inWords(decide(snap(tt.set, nil, tt.pods...))); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestDecideBounds(t *testing.T) {
	if got := len(decide(snap(newSet(2_000_000_000, parallel), nil)).stages[0]); got != burst {
		t.Errorf("replicas without end: got %d creations, want %d", got, burst)
	}
	s := snap(newSet(3), nil)
	s.expectationsSatisfied = false
	if got := inWords(decide(s)); got != "" {
		t.Errorf("while the cache is stale: got %q, want nothing", got)
	}
}

func TestOrdinal(t *testing.T) {
	tests := []struct {
		in, set string
		n       int
	}{
		{"web-0", "web", 0},
		{"a-b-12", "a-b", 12},
		{"web-4294967296", "web", 4294967296},
		{"web", "", -1},
		{"web-", "", -1},
		{"web-01", "", -1},
		{"web--1", "web-", 1},
		{"web-x", "", -1},
		{"-1", "", -1},
	}
	for _, tt := range tests {
		if set, n := parseOrdinal(tt.in); set != tt.set || n != tt.n {
			t.Errorf("ordinal(%q): got %q, %d; want %q, %d", tt.in, set, n, tt.set, tt.n)
		}
	}
}

func TestStatus(t *testing.T) {
	three := newSet(3, func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = 30 })
	s := snap(three, nil, podOf(three, 0, old), podOf(three, 1, old, going), podOf(three, 2, readyFor(10*time.Second)),
		podOf(three, 3, pending))
	st := status(s)
	got := fmt.Sprintln(st.Replicas, st.ReadyReplicas, st.AvailableReplicas, st.CurrentReplicas, st.UpdatedReplicas,
		st.CurrentRevision, st.UpdateRevision, *st.CollisionCount)
	if want := "4 3 2 1 2 old new 0\n"; got != want {
		t.Errorf("replicas, ready, available, current, updated: got %s, want %s", got, want)
	}
	if next := decide(s).next; next != 20*time.Second {
		t.Errorf("next look: got %v, want 20s", next)
	}
	all := snap(three, nil, podOf(three, 0), podOf(three, 1), podOf(three, 2))
	if st := status(all); st.CurrentRevision != "new" || st.CurrentReplicas != 3 {
		t.Errorf("a complete rollout: got current %s, %d replicas; want new, 3", st.CurrentRevision, st.CurrentReplicas)
	}
}

// A person replaces the pods of a set with OnDelete: the rollout is complete when all are new and ready.
func TestStatusOfOnDelete(t *testing.T) {
	set := newSet(3, onDelete)
	tests := []struct {
		name     string
		pods     []*corev1.Pod
		current  string
		replicas int32
	}{
		{"one is old", []*corev1.Pod{podOf(set, 0, old), podOf(set, 1), podOf(set, 2)}, "old", 1},
		{"one is unready", []*corev1.Pod{podOf(set, 0, unready), podOf(set, 1), podOf(set, 2)}, "old", 0},
		{"one is missing", []*corev1.Pod{podOf(set, 1), podOf(set, 2)}, "old", 0},
		{"all are new and ready", []*corev1.Pod{podOf(set, 0), podOf(set, 1), podOf(set, 2)}, "new", 3},
	}
	for _, tt := range tests {
		st := status(snap(set, nil, tt.pods...))
		if st.CurrentRevision != tt.current || st.CurrentReplicas != tt.replicas {
			t.Errorf("%s: got current %s, %d replicas; want %s, %d", tt.name, st.CurrentRevision, st.CurrentReplicas,
				tt.current, tt.replicas)
		}
	}
}
