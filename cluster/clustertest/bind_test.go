// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podfacts "keelson/api/core/pod"
	"keelson/client"
	"keelson/cluster/clustertest"
)

// TestAnswerToBindingLost: a pod that was bound is not said to be unscheduled because the scheduler did not learn of
// it.
func TestAnswerToBindingLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Bool
		cluster := clustertest.Start(t, clustertest.Config{
			Scheduler: true,
			Between: func(part, _ string, h http.Handler, s client.Source) (http.Handler, client.Source) {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if part != clustertest.Scheduler || !strings.HasSuffix(r.URL.Path, "/binding") ||
						!lost.CompareAndSwap(false, true) {
						h.ServeHTTP(w, r)
						return
					}
					h.ServeHTTP(httptest.NewRecorder(), r)
					http.Error(w, "the answer was lost", http.StatusInternalServerError)
				}), s
			},
		})
		ctx := t.Context()
		addNode(t, cluster)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "x"}},
			},
		}
		if _, err := cluster.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		p, err := cluster.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !lost.Load() || p.Spec.NodeName != "n" {
			t.Fatalf("pod is on %q, an answer was lost: %t; want n, true: %+v", p.Spec.NodeName, lost.Load(),
				p.Status.Conditions)
		}
		if cond := podfacts.Condition(p, corev1.PodScheduled); cond == nil || cond.Status != corev1.ConditionTrue {
			t.Errorf("the condition of a bound pod is %+v, want True", cond)
		}
	})
}

// addNode adds a node n that is ready.
func addNode(t *testing.T, cluster *clustertest.Cluster) {
	t.Helper()
	ctx := t.Context()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse(
			"8Gi"),
		corev1.ResourcePods: resource.MustParse("10"),
	}
	node, err := cluster.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Spec.Taints = nil
	if node, err = cluster.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	node.Status = corev1.NodeStatus{
		Capacity:    room,
		Allocatable: room,
		Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		},
	}
	if _, err := cluster.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestRefusalArrivesLate: the slow write of an earlier refusal does not say of a bound pod that it is not scheduled.
func TestRefusalArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int32
		cluster := clustertest.Start(t, clustertest.Config{
			Scheduler: true,
			Between: func(part, _ string, h http.Handler, s client.Source) (http.Handler, client.Source) {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if part == clustertest.Scheduler && strings.HasSuffix(r.URL.Path, "/p/status") && slow.Add(1) == 1 {
						time.Sleep(10 * time.Second)
					}
					h.ServeHTTP(w, r)
				}), s
			},
		})
		ctx := t.Context()
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "x"}},
			},
		}
		if _, err := cluster.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		addNode(t, cluster)
		time.Sleep(time.Minute)
		p, err := cluster.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if slow.Load() == 0 || p.Spec.NodeName != "n" {
			t.Fatalf("pod is on %q, a write was slow: %d; want n: %+v", p.Spec.NodeName, slow.Load(),
				p.Status.Conditions)
		}
		if cond := podfacts.Condition(p, corev1.PodScheduled); cond == nil || cond.Status != corev1.ConditionTrue {
			t.Errorf("the condition of a bound pod is %+v, want True", cond)
		}
	})
}

// TestRefusalOfChangedPod: the refusal of a pod is reported although the pod is changed meanwhile.
func TestRefusalOfChangedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int32
		cluster := clustertest.Start(t, clustertest.Config{
			Scheduler: true,
			Between: func(part, _ string, h http.Handler, s client.Source) (http.Handler, client.Source) {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if part == clustertest.Scheduler && strings.HasSuffix(r.URL.Path, "/p/status") && slow.Add(1) == 1 {
						time.Sleep(10 * time.Second)
					}
					h.ServeHTTP(w, r)
				}), s
			},
		})
		pods := cluster.CoreV1().Pods("default")
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "x"}},
			},
		}
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := pods.Patch(t.Context(), "p", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if cond := podfacts.Condition(p, corev1.PodScheduled); cond == nil ||
			cond.Reason != corev1.PodReasonUnschedulable {
			t.Errorf("the condition of a pod that fits nowhere is %+v, want Unschedulable", cond)
		}
	})
}
