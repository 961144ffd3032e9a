// SPDX-License-Identifier: Apache-2.0

package podgc

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func pod(name, node string, phase corev1.PodPhase, age time.Duration) *corev1.Pod {
	return apitest.Pod(name, apitest.On(node), apitest.Phase(phase),
		apitest.Created(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age)))
}

func names(t *testing.T, c *controllertest.Cluster) []string {
	t.Helper()
	l, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range l.Items {
		all = append(all, p.Name)
	}
	slices.Sort(all)
	return all
}

func start(t *testing.T, c *controllertest.Cluster, keep int) {
	c.Start(t, "pod-garbage-collector", func(env *framework.Env) (framework.Controller, error) {
		return New(env, keep, NewMetrics())
	})
	time.Sleep(time.Second)
}

func TestLostNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(apitest.Node("n"), apitest.Node("gone"),
			pod("a", "n", corev1.PodRunning, 0), pod("b", "gone", corev1.PodRunning, 0), pod("c", "never-was",
				corev1.PodRunning, 0), pod("d", "", corev1.PodPending, 0))
		start(t, cluster, -1)
		if err := cluster.CoreV1().Nodes().Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if got := names(t, cluster); len(got) != 4 {
			t.Errorf("in quarantine: got %v, want all four", got)
		}
		time.Sleep(30 * time.Second)
		if got := names(t, cluster); !slices.Equal(got, []string{"a", "d"}) {
			t.Errorf("after it: got %v, want a and d", got)
		}
		patched := 0
		for _, a := range cluster.Fake.Actions() {
			if p, ok := a.(clienttesting.PatchAction); ok && p.GetSubresource() == "status" {
				patched++
			}
		}
		if patched != 2 {
			t.Errorf("%d pods marked as disrupted, want 2", patched)
		}
	})
}

func TestUnboundAndGoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pod("a", "", corev1.PodPending, 0)
		p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		p.Finalizers = []string{"test/hold"}
		c := controllertest.New(p, pod("b", "", corev1.PodPending, 0))
		start(t, c, -1)
		if got := names(t, c); !slices.Equal(got, []string{"b"}) {
			t.Errorf("got %v, want b", got)
		}
	})
}

func TestTooManyFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(apitest.Node("n"),
			pod("running", "n", corev1.PodRunning, time.Hour))
		start(t, cluster, 3)
		for i := range 6 {
			p := pod(fmt.Sprint("p", i), "n", corev1.PodSucceeded, time.Duration(i)*time.Minute)
			if i == 0 {
				p.Status.Phase = corev1.PodFailed
				p.Status.Reason = "Evicted"
			}
			if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		if got, want := names(t, cluster), []string{"p1", "p2", "p3", "running"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// TestOutOfService: terminating pods on a node that is declared out of service are deleted at once, unless the node is
// ready.
func TestOutOfService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		going := func(name, node string) *corev1.Pod {
			p := pod(name, node, corev1.PodRunning, time.Hour)
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			p.Finalizers = []string{"test/hold"}
			return p
		}
		node := func(name string, ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
			return apitest.Node(name, apitest.Taints(taints...), apitest.Condition(corev1.NodeReady, ready))
		}
		out := corev1.Taint{
			Key:    corev1.TaintNodeOutOfService,
			Value:  "nodeshutdown",
			Effect: corev1.TaintEffectNoExecute,
		}
		cluster := controllertest.New(node("down", "Unknown", out), node("up", "True", out), node("silent", "Unknown"),
			going("a", "down"), pod("stays", "down", corev1.PodRunning, time.Hour), going("b", "up"), going("c",
				"silent"))
		start(t, cluster, -1)
		time.Sleep(time.Minute)
		if got, want := names(t, cluster), []string{"b", "c", "stays"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		n, err := cluster.CoreV1().Nodes().Get(t.Context(), "silent", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Spec.Taints = []corev1.Taint{out}
		if _, err := cluster.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got, want := names(t, cluster), []string{"b", "stays"}; !slices.Equal(got, want) {
			t.Errorf("after silent was declared out of service: got %v, want %v", got, want)
		}
	})
}
