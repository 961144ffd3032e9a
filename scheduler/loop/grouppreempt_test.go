// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	k8stesting "k8s.io/client-go/testing"

	"keelson/scheduler/schedtest"
)

func whole(g *schedulingv1beta1.PodGroup) *schedulingv1beta1.PodGroup {
	g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
	return g
}

func low(name, node, cpu string, o ...schedtest.PodOption) *corev1.Pod {
	return schedtest.Pod(name, append(o, schedtest.On(node), schedtest.Requests(cpu, ""))...)
}

// remainingPods names the pods that are there still, but for those of the group g.
func (c *cluster) remainingPods() string {
	c.t.Helper()
	pods, err := c.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, p := range pods.Items {
		if !strings.HasPrefix(p.Name, "g-") {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestGangPreempts: as few and as unimportant pods go as the whole gang needs, none if that is not enough, and groups
// that say so go whole.
func TestGangPreempts(t *testing.T) {
	high := schedtest.Priority(100)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}},
			MinAvailable: new(intstr.FromInt32(1)),
		},
	}
	for name, tt := range map[string]struct {
		least   int32
		gang    []runtime.Object
		cluster []runtime.Object
		bound   int
		left    string
		stands  string
	}{
		"spares who may stay": {
			2, schedtest.Members("g", 2, "3", high), []runtime.Object{low("a", "n1", "3"), low("b", "n1", "1"), low("c", "n2",
				"1"), low("d", "n2", "3")}, 2, "b c", "True Scheduled",
		},
		"spares the more important": {
			1, schedtest.Members("g", 1, "4", high), []runtime.Object{low("a", "n1", "4", schedtest.Priority(7)), low("b", "n2",
				"4", schedtest.Priority(3))}, 1, "a|b", "True Scheduled",
		},
		"in vain": {
			3, schedtest.Members("g", 3, "3", high),
			[]runtime.Object{low("a", "n1", "3"), low("d", "n2", "3")},
			0, "a d",
			"False Unschedulable: minCount (3) cannot be satisfied: 0 scheduled, 2 remaining, pod group preemption: " +
				"minCount (3) cannot be satisfied: 2 scheduled, 0 remaining",
		},
		"no pod is less important": {
			2, schedtest.Members("g", 2, "3", high),
			[]runtime.Object{low("a", "n1", "3", high), low("d", "n2", "3", high)},
			0,
			"a d",
			"False Unschedulable: minCount (2) cannot be satisfied: 0 scheduled, 1 remaining, pod group preemption: " +
				"No preemption victims found for incoming preemptor",
		},
		"never": {
			2, schedtest.Members("g", 2, "3", high, schedtest.With(func(s *corev1.PodSpec) {
				s.PreemptionPolicy = new(corev1.PreemptNever)
			})),
			[]runtime.Object{low("a", "n1", "3"), low("d", "n2", "3")},
			0, "a d",
			"False Unschedulable: minCount (2) cannot be satisfied: 0 scheduled, 1 remaining, pod group preemption: " +
				"not eligible due to preemptionPolicy=Never.",
		},
		"a group goes whole": {
			2, schedtest.Members("g", 2, "3", high), []runtime.Object{whole(schedtest.Gang("w", 1)), low("a", "n1", "3", schedtest.InGroup("w")), low(
				"b", "n1", "1", schedtest.InGroup("w")), low("c", "n2", "1"), low("d", "n2", "3")}, 2, "c", "True Scheduled",
		},
		"a group of single pods": {
			2, schedtest.Members("g", 2, "3", high), []runtime.Object{schedtest.Gang("w", 1), low("a", "n1", "3", schedtest.InGroup("w")), low("b",
				"n1", "1", schedtest.InGroup("w")), low("c", "n2", "1"), low("d", "n2", "3")}, 2, "b c", "True Scheduled",
		},
		"budget": {
			2, schedtest.Members("g", 2, "2", high), []runtime.Object{
				budget, low("a", "n1", "2", schedtest.Labelled("app", "kept")),
				low("b", "n1", "2", schedtest.Priority(9)), low("c", "n2", "4"),
			}, 2, "a", "True Scheduled",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startGroups(t, append(tt.cluster, schedtest.Node("n1"), schedtest.Node("n2"))...)
				settle() // the fake server loses what happens between an informer's list and its watch
				c.add(append(tt.gang, schedtest.Important(schedtest.Gang("g", tt.least), 100))...)
				settle()
				if n, left, s := c.countBound("g-"), c.remainingPods(), c.groupCondition("g"); n != tt.bound ||
					!slices.Contains(strings.Split(tt.left, "|"), left) || s != tt.stands {
					t.Errorf("%d bound, left %q, group %q; want %d, %q, %q", n, left, s, tt.bound, tt.left, tt.stands)
				}
			})
		})
	}
}

// TestGangWaitsForVictims: while its victims leave, no pod takes their room and no other pod is preempted.
func TestGangWaitsForVictims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objs []runtime.Object
		for i := range 4 {
			n := fmt.Sprint("n", i)
			objs = append(objs, low("a"+n, n, "3", func(p *corev1.Pod) {
				p.Finalizers = []string{"example.com/slow"}
			}), schedtest.Node(n))
		}
		cluster := startGroups(t)
		cluster.keepFinalizers()
		cluster.add(objs...)
		settle()
		cluster.add(append(schedtest.Members("g", 2, "3", schedtest.Priority(100)), schedtest.Important(schedtest.Gang("g", 2), 100))...)
		settle()
		leaving := func() (names []string) {
			pods, err := cluster.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods.Items {
				if p.DeletionTimestamp != nil {
					names = append(names, p.Name)
				}
			}
			return names
		}
		names := leaving()
		if len(names) != 2 || cluster.countBound("g-") != 0 {
			t.Fatalf("%v leave, %d bound; want 2, 0", names, cluster.countBound("g-"))
		}
		cluster.add(schedtest.Pod("plain", schedtest.Requests("3", "")))
		for _, name := range names {
			if err := cluster.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default",
				name); err != nil {
				t.Fatal(err)
			}
			settle()
		}
		if n := cluster.countBound("g-"); n != 2 || bound(cluster.pod("plain")) || len(leaving()) != 0 {
			t.Errorf("%d bound, plain on %q, leaving %v", n, cluster.pod("plain").Spec.NodeName, leaving())
		}
	})
}

// keepFinalizers has deletions of pods with finalizers mark them, as a server does.
func (c *cluster) keepFinalizers() {
	c.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		d := a.(k8stesting.DeleteAction)
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		o, err := c.Tracker().Get(pods, d.GetNamespace(), d.GetName())
		if err != nil || len(o.(*corev1.Pod).Finalizers) == 0 {
			return false, nil, nil //nolint:nilerr // the tracker returns the error
		}
		p := o.(*corev1.Pod).DeepCopy()
		now := metav1.Now()
		p.DeletionTimestamp = &now
		return true, p, c.Tracker().Update(pods, p, d.GetNamespace())
	})
}
