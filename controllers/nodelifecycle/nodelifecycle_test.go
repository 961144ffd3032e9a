// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podkind "keelson/api/core/pod"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func node(name string, ready corev1.ConditionStatus, f ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: ready}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse},
	}
	for _, g := range f {
		g(n)
	}
	return n
}

func tainted(keys ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, k := range keys {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoSchedule})
		}
	}
}

func brief(ts []corev1.Taint) []string {
	var out []string
	for _, t := range ts {
		out = append(out, t.Key+":"+string(t.Effect))
	}
	slices.Sort(out)
	return out
}

func TestTaints(t *testing.T) {
	const prefix = "node.kubernetes.io/"
	tests := []struct {
		name  string
		n     *corev1.Node
		evict bool
		want  []string
	}{
		{"ready", node("n", "True"), true, nil},
		{"ready again", node("n", "True", tainted(corev1.TaintNodeUnreachable, "mine")), true, []string{"mine:NoSchedule"}},
		{"not ready", node("n", "False"), true, []string{prefix + "not-ready:NoExecute", prefix + "not-ready:NoSchedule"}},
		{"unreachable", node("n", "Unknown"), true, []string{prefix + "unreachable:NoExecute", prefix + "unreachable:NoSchedule"}},
		{"unreachable, nothing to be evicted", node("n", "Unknown"), false, []string{prefix + "unreachable:NoSchedule"}},
		{"pressure", node("n", "True", func(n *corev1.Node) { n.Status.Conditions[1].Status = "True" }), true, []string{prefix + "memory-pressure:NoSchedule"}},
		{"cordoned", node("n", "True", func(n *corev1.Node) { n.Spec.Unschedulable = true }), true, []string{prefix + "unschedulable:NoSchedule"}},
		{"uncordoned", node("n", "True", tainted(corev1.TaintNodeUnschedulable)), true, nil},
	}
	for _, tt := range tests {
		once := taints(tt.n, tt.evict, start)
		if got := brief(once); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
		tt.n.Spec.Taints = once
		if again := taints(tt.n, tt.evict, start.Add(time.Hour)); !slices.Equal(brief(again), tt.want) || len(again) > 0 && again[0].TimeAdded != once[0].TimeAdded {
			t.Errorf("%s: twice gives %v", tt.name, again)
		}
	}
}

func TestMayEvict(t *testing.T) {
	tests := []struct {
		ready, not, anywhere int
		every                time.Duration
		ok                   bool
	}{
		{2, 1, 2, 10 * time.Second, true},
		{0, 3, 0, 0, false},                   // everything is down
		{0, 3, 5, 10 * time.Second, true},     // one zone of several
		{2, 4, 2, 0, false},                   // most of a small zone
		{30, 70, 30, 100 * time.Second, true}, // most of a large one
	}
	for _, tt := range tests {
		if every, ok := mayEvict(tt.ready, tt.not, tt.anywhere); every != tt.every || ok != tt.ok {
			t.Errorf("mayEvict(%d, %d, %d) = %v, %v; want %v, %v", tt.ready, tt.not, tt.anywhere, every, ok, tt.every, tt.ok)
		}
	}
}

func lease(name string, seconds int32) *coordination.Lease {
	return &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordination.LeaseSpec{LeaseDurationSeconds: &seconds},
	}
}

func renew(t *testing.T, c *controllertest.Cluster, name string) {
	t.Helper()
	l, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := metav1.NowMicro()
	l.Spec.RenewTime = &at
	if _, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(t.Context(), l, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, c *controllertest.Cluster, name string) *corev1.Node {
	t.Helper()
	n, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func begin(t *testing.T, c *controllertest.Cluster) {
	c.Start(t, "node-controller", func(env *framework.Env) (framework.Controller, error) { return New(env, 40*time.Second) })
}

func TestSilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: corev1.PodSpec{NodeName: "a"}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		c := controllertest.New(node("a", "True"), node("b", "True"), node("long", "True"), lease("a", 40), lease("b", 40), lease("long", 3600), pod)
		begin(t, c)
		// While a renews it stays ready; b renews throughout; long may be silent for an hour.
		for range 10 {
			time.Sleep(10 * time.Second)
			renew(t, c, "a")
			renew(t, c, "b")
		}
		if got := readiness(get(t, c, "a")); got != corev1.ConditionTrue {
			t.Fatalf("a renews, but is %s", got)
		}
		for range 5 {
			time.Sleep(10 * time.Second)
			renew(t, c, "b")
		}
		n := get(t, c, "a")
		if cond := condition(n, corev1.NodeReady); cond.Status != corev1.ConditionUnknown || cond.Reason != "NodeStatusUnknown" || cond.Message != "Kubelet stopped posting node status." {
			t.Errorf("a is silent: got %+v", cond)
		}
		if got, want := brief(n.Spec.Taints), []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}; !slices.Equal(got, want) {
			t.Errorf("taints: got %v, want %v", got, want)
		}
		p, err := c.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil || podkind.Ready(p) {
			t.Errorf("its pod still is ready (%v)", err)
		}
		for _, name := range []string{"b", "long"} {
			if got := readiness(get(t, c, name)); got != corev1.ConditionTrue {
				t.Errorf("%s: got %s, want ready", name, got)
			}
		}
		n.Status.Conditions[0].Status = corev1.ConditionTrue
		n.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
		if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := get(t, c, "a").Spec.Taints; len(got) != 0 {
			t.Errorf("after it came back: got taints %v", got)
		}
	})
}

func TestNoEvictionWhenAllAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(node("a", "True"), node("b", "True"))
		begin(t, c)
		time.Sleep(5 * time.Minute)
		for _, name := range []string{"a", "b"} {
			if got := brief(get(t, c, name).Spec.Taints); !slices.Equal(got, []string{"node.kubernetes.io/unreachable:NoSchedule"}) {
				t.Errorf("%s: got %v", name, got)
			}
		}
	})
}

func TestRenewalsCostNoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New()
		for i := range 5 {
			name := fmt.Sprint("n", i)
			if _, err := c.CoreV1().Nodes().Create(t.Context(), node(name, "True"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(), lease(name, 40), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		begin(t, c)
		time.Sleep(time.Second)
		c.Fake.ClearActions()
		for range 10 {
			time.Sleep(10 * time.Second)
			for i := range 5 {
				renew(t, c, fmt.Sprint("n", i))
			}
		}
		for _, a := range c.Fake.Actions() {
			if a.GetResource().Resource != "leases" {
				t.Errorf("request while all is well: %v", a)
			}
		}
	})
}
