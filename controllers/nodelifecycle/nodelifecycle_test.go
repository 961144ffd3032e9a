// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
	podkind "keelson/api/core/pod"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func node(name string, ready corev1.ConditionStatus, f ...func(*corev1.Node)) *corev1.Node {
	return apitest.Node(name, append([]func(*corev1.Node){
		apitest.Condition(corev1.NodeReady, ready),
		apitest.Condition(corev1.NodeMemoryPressure, corev1.ConditionFalse),
		apitest.Condition(corev1.NodeDiskPressure, corev1.ConditionFalse),
		apitest.Condition(corev1.NodePIDPressure, corev1.ConditionFalse),
	}, f...)...)
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
		{
			"ready again", node("n", "True", tainted(corev1.TaintNodeUnreachable, "mine")), true,
			[]string{"mine:NoSchedule"},
		},
		{
			"not ready", node("n", "False"), true,
			[]string{prefix + "not-ready:NoExecute", prefix + "not-ready:NoSchedule"},
		},
		{
			"unreachable", node("n", "Unknown"), true,
			[]string{prefix + "unreachable:NoExecute", prefix + "unreachable:NoSchedule"},
		},
		{
			"unreachable, nothing to be evicted", node("n", "Unknown"), false,
			[]string{prefix + "unreachable:NoSchedule"},
		},
		{
			"pressure", node("n", "True", func(n *corev1.Node) { n.Status.Conditions[1].Status = "True" }), true,
			[]string{prefix + "memory-pressure:NoSchedule"},
		},
		{
			"cordoned", node("n", "True", func(n *corev1.Node) { n.Spec.Unschedulable = true }), true,
			[]string{prefix + "unschedulable:NoSchedule"},
		},
		{"uncordoned", node("n", "True", tainted(corev1.TaintNodeUnschedulable)), true, nil},
	}
	for _, tt := range tests {
		once := taints(tt.n, tt.evict, start)
		if got := brief(once); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
		tt.n.Spec.Taints = once
		if requeueAfter := taints(tt.n, tt.evict, start.Add(time.Hour)); !slices.Equal(brief(requeueAfter), tt.want) ||
			len(requeueAfter) > 0 && requeueAfter[0].TimeAdded != once[0].TimeAdded {
			t.Errorf("%s: twice gives %v", tt.name, requeueAfter)
		}
	}
}

func TestPause(t *testing.T) {
	tests := []struct {
		name       string
		cfg        Config
		ready, not int
		want       time.Duration
	}{
		{"few are down", Config{}, 20, 2, 10 * time.Second},
		{"all of the zone is down", Config{}, 0, 3, 10 * time.Second},
		{"two nodes are too few for a zone's state", Config{}, 1, 2, 10 * time.Second},
		{"most of a small zone", Config{}, 2, 4, noEvictions},
		{"most of a large one", Config{}, 30, 70, 100 * time.Second},
		{"just under the threshold", Config{}, 46, 54, 10 * time.Second},
		{"at the threshold", Config{}, 45, 55, 100 * time.Second},
		{"other rates", Config{
			Rate:                  2,
			SecondaryRate:         0.5,
			UnhealthyThreshold:    0.2,
			LargeClusterThreshold: 5,
		}, 5, 5, 2 * time.Second},
		{"another rate", Config{Rate: 2}, 5, 1, 500 * time.Millisecond},
		{"none at all", Config{Rate: -1}, 5, 1, noEvictions},
		{"no zone is small", Config{LargeClusterThreshold: -1}, 1, 4, 100 * time.Second},
	}
	for _, tt := range tests {
		if got := tt.cfg.Default().evictionInterval(tt.ready, tt.not); got != tt.want {
			t.Errorf("%s: pause(%d, %d) = %v, want %v", tt.name, tt.ready, tt.not, got, tt.want)
		}
	}
}

func TestMissingLabels(t *testing.T) {
	n := node("n", "True")
	if got := missingLabels(n); got != nil {
		t.Errorf("no labels: got %v", got)
	}
	n.Labels = map[string]string{
		corev1.LabelOSStable:    "linux",
		corev1.LabelArchStable:  "arm64",
		"beta.kubernetes.io/os": "plan9",
	}
	if got, want := missingLabels(n), map[string]string{
		"beta.kubernetes.io/os":   "linux",
		"beta.kubernetes.io/arch": "arm64",
	}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
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
	if _, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(t.Context(), l,
		metav1.UpdateOptions{}); err != nil {
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
	c.Start(t, "node-controller", func(env *framework.Env) (framework.Controller, error) {
		return New(env, Config{Grace: 40 * time.Second}, NewMetrics())
	})
}

func TestSilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
			Spec: corev1.PodSpec{
				NodeName: "a",
			},
		}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		cluster := controllertest.New(node("a", "True"), node("b", "True"), node("long", "True"), lease("a", 40),
			lease("b", 40), lease("long", 3600), pod)
		begin(t, cluster)
		// While a renews it stays ready; b renews throughout; long may be silent for an hour.
		for range 10 {
			time.Sleep(10 * time.Second)
			renew(t, cluster, "a")
			renew(t, cluster, "b")
		}
		if got := readiness(get(t, cluster, "a")); got != corev1.ConditionTrue {
			t.Fatalf("a renews, but is %s", got)
		}
		for range 5 {
			time.Sleep(10 * time.Second)
			renew(t, cluster, "b")
		}
		n := get(t, cluster, "a")
		if cond := condition(n, corev1.NodeReady); cond.Status != corev1.ConditionUnknown ||
			cond.Reason != "NodeStatusUnknown" || cond.Message != "Kubelet stopped posting node status." {
			t.Errorf("a is silent: got %+v", cond)
		}
		if got, want := brief(n.Spec.Taints),
			[]string{
				"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule",
			}; !slices.Equal(got, want) {
			t.Errorf("taints: got %v, want %v", got, want)
		}
		p, err := cluster.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil || podkind.Ready(p) {
			t.Errorf("its pod still is ready (%v)", err)
		}
		for _, name := range []string{"b", "long"} {
			if got := readiness(get(t, cluster, name)); got != corev1.ConditionTrue {
				t.Errorf("%s: got %s, want ready", name, got)
			}
		}
		n.Status.Conditions[0].Status = corev1.ConditionTrue
		n.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
		if _, err := cluster.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := get(t, cluster, "a").Spec.Taints; len(got) != 0 {
			t.Errorf("after it came back: got taints %v", got)
		}
	})
}

// TestOnlyRenewalsAreSignsOfLife: a lease that is delivered again, or is labelled, was not renewed; one without a node
// is forgotten.
func TestOnlyRenewalsAreSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(node("a", "True"), lease("a", 40), lease("left", 40))
		var ctl *Controller
		cluster.Start(t, "node-controller", func(env *framework.Env) (framework.Controller, error) {
			built, err := New(env, Config{Grace: 40 * time.Second}, NewMetrics())
			ctl = built.(*Controller) // New's
			return built, err
		})
		leases := cluster.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		for i := range 6 {
			time.Sleep(10 * time.Second)
			l, err := leases.Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			l.Labels = map[string]string{"n": fmt.Sprint(i)}
			if _, err := leases.Update(t.Context(), l, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := readiness(get(t, cluster, "a")); got != corev1.ConditionUnknown {
			t.Errorf("a renews nothing, but is %s", got)
		}
		for _, name := range []string{"a", "left"} {
			if err := leases.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		ctl.mu.Lock()
		defer ctl.mu.Unlock()
		if _, ok := ctl.heartbeats["a"]; !ok || len(ctl.heartbeats) != 1 {
			t.Errorf("remembers %v, want a alone", ctl.heartbeats)
		}
	})
}

// TestLateWatch: a node whose renewals the watch does not deliver is not silent, as long as the server has them.
func TestLateWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(node("a", "True"), lease("a", 40))
		var renews atomic.Bool
		renews.Store(true)
		var off atomic.Int64
		cluster.Fake.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			l := lease("a", 40)
			if renews.Load() {
				l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(time.Duration(off.Load()))}
			}
			return true, l, nil
		})
		cluster.Start(t, "node-controller", func(env *framework.Env) (framework.Controller, error) {
			return New(env, Config{Grace: 40 * time.Second}, NewMetrics())
		})
		time.Sleep(5 * time.Minute)
		if got := readiness(get(t, cluster, "a")); got != corev1.ConditionTrue {
			t.Errorf("a renews its lease, but is %s", got)
		}
		off.Store(int64(-3 * time.Hour))
		time.Sleep(5 * time.Minute)
		if got := readiness(get(t, cluster, "a")); got != corev1.ConditionTrue {
			t.Errorf("a renews its lease by a clock that was set back, but is %s", got)
		}
		renews.Store(false)
		time.Sleep(time.Minute)
		if got := readiness(get(t, cluster, "a")); got != corev1.ConditionUnknown {
			t.Errorf("a renews nothing any more, but is %s", got)
		}
	})
}

func TestNoEvictionWhenAllAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(node("a", "True"), node("b", "True"))
		begin(t, c)
		time.Sleep(5 * time.Minute)
		for _, name := range []string{"a", "b"} {
			if got := brief(get(t, c, name).Spec.Taints); !slices.Equal(got,
				[]string{"node.kubernetes.io/unreachable:NoSchedule"}) {
				t.Errorf("%s: got %v", name, got)
			}
		}
	})
}

func TestRenewalsCostNoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New()
		for i := range 5 {
			name := fmt.Sprint("n", i)
			if _, err := cluster.CoreV1().Nodes().Create(t.Context(), node(name, "True"),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := cluster.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(), lease(name, 40),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		begin(t, cluster)
		time.Sleep(time.Second)
		cluster.Fake.ClearActions()
		for range 10 {
			time.Sleep(10 * time.Second)
			for i := range 5 {
				renew(t, cluster, fmt.Sprint("n", i))
			}
		}
		for _, a := range cluster.Fake.Actions() {
			if a.GetResource().Resource != "leases" {
				t.Errorf("request while all is well: %v", a)
			}
		}
	})
}

// inZone puts a node in a zone.
func inZone(name string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: name} }
}

// evictedFrom counts the nodes that have a NoExecute taint.
func evictedFrom(t *testing.T, c *controllertest.Cluster, prefix string) (n int) {
	t.Helper()
	all, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all.Items {
		if strings.HasPrefix(m.Name, prefix) && slices.ContainsFunc(m.Spec.Taints, evicts) {
			n++
		}
	}
	return n
}

// silence lets n nodes of a zone fall silent at once, next to ready ones that the test keeps alive.
func silence(t *testing.T, c *controllertest.Cluster, names []string) {
	t.Helper()
	for _, name := range names {
		n := get(t, c, name)
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// cluster makes n nodes of a zone, all ready, with leases that last.
func cluster(zone string, n int) (objs []runtime.Object, names []string) {
	for i := range n {
		name := fmt.Sprint(zone, i)
		objs = append(objs, node(name, "True", inZone(zone)), lease(name, 36000))
		names = append(names, name)
	}
	return objs, names
}

// TestEvictionRate: where nodes are lost together, pods are evicted from one of them every ten seconds in each zone.
func TestEvictionRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, inA := cluster("a", 20)
		b, inB := cluster("b", 20)
		c := controllertest.New(append(a, b...)...)
		begin(t, c)
		time.Sleep(time.Second)
		silence(t, c, inA[:6])
		silence(t, c, inB[:3])
		time.Sleep(time.Second)
		for i, want := range [][2]int{{1, 1}, {2, 2}, {3, 3}, {4, 3}, {5, 3}, {6, 3}} {
			if got := [2]int{evictedFrom(t, c, "a"), evictedFrom(t, c, "b")}; got != want {
				t.Errorf("%d s after they fell silent: evicted from %v, want %v", 10*i+1, got, want)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// TestZoneModes: when most of a small zone is down nothing more is evicted there; when all of it is, and other zones
// live, at the usual rate; when no node at all is ready, nowhere, and what was begun is taken back.
func TestZoneModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, inA := cluster("a", 6)
		b, inB := cluster("b", 3)
		c := controllertest.New(append(a, b...)...)
		begin(t, c)
		time.Sleep(time.Second)
		silence(t, c, inA[:4])
		time.Sleep(time.Minute)
		if got := evictedFrom(t, c, "a"); got > 1 { // one may be, before the others are known to be silent
			t.Errorf("most of a is down: evicted from %d", got)
		}
		silence(t, c, inA[4:])
		time.Sleep(61 * time.Second)
		if got := evictedFrom(t, c, "a"); got != 6 {
			t.Errorf("all of a is down, b is not: evicted from %d, want 6", got)
		}
		silence(t, c, inB)
		time.Sleep(time.Second)
		if got := evictedFrom(t, c, ""); got != 0 {
			t.Errorf("everything is down: evicted from %d, want 0", got)
		}
		n := get(t, c, "b0")
		n.Status.Conditions[0].Status = corev1.ConditionTrue
		n.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
		if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if a, b := evictedFrom(t, c, "a"), evictedFrom(t, c, "b"); a != 6 || b != 2 {
			t.Errorf("b0 is back: evicted from %d of a and %d of b, want 6 and 2", a, b)
		}
	})
}

// TestExcludedNodes do not count when a zone's health is judged.
func TestExcludedNodes(t *testing.T) {
	zones := newZones(Config{}.Default(), NewMetrics())
	for i := range 4 {
		n := node(fmt.Sprint("n", i), "False", inZone("z"))
		n.Labels[excluded] = ""
		zones.update(n)
	}
	zones.update(node("m", "True", inZone("z")))
	if wait, ok := zones.allowEviction("z", start); !ok {
		t.Errorf("one ready node counts, four do not: wait %v", wait)
	}
	if changed := zones.remove("m"); !changed || !zones.noneReady() || len(zones.zones) != 0 {
		t.Errorf("the last one is gone: changed %v, calm %v, zones %v", changed, zones.noneReady(), zones.zones)
	}
}

// TestEventsAndLabels: registering and leaving cause events, and older labels follow the newer ones.
func TestEventsAndLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New()
		begin(t, cluster)
		time.Sleep(time.Second)
		n := node("n", "True")
		n.Labels = map[string]string{corev1.LabelOSStable: "linux"}
		if _, err := cluster.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := get(t, cluster, "n").Labels["beta.kubernetes.io/os"]; got != "linux" {
			t.Errorf("the older label is %q", got)
		}
		if err := cluster.CoreV1().Nodes().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got, want := cluster.EventsSeen(),
			[]string{
				"Normal RegisteredNode Registered Node n in Controller",
				"Normal RemovingNode Removing Node n from Controller",
			}; !slices.Equal(got, want) {
			t.Errorf("events: got %q, want %q", got, want)
		}
	})
}

// TestReadyPodsOfANotReadyNode: while a kubelet talks it says itself how its pods are.
func TestReadyPodsOfANotReadyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
			Spec: corev1.PodSpec{
				NodeName: "a",
			},
		}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		late := pod.DeepCopy()
		late.Name = "late"
		late.Spec.NodeName = "b"
		spoke := late.DeepCopy() // its kubelet, whose lease is not renewed, has written since
		spoke.Name = "spoke"
		spoke.Status.Conditions[0].LastTransitionTime = metav1.Now()
		b := node("b", "Unknown")
		b.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Minute))
		c := controllertest.New(node("a", "False"), b, lease("a", 3600), pod, spoke)
		begin(t, c)
		time.Sleep(time.Second)
		if _, err := c.CoreV1().Pods("default").Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for name, want := range map[string]bool{"p": true, "late": false, "spoke": true} {
			p, err := c.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || podkind.Ready(p) != want {
				t.Errorf("%s: ready %v (%v), want %v", name, !want, err, want)
			}
		}
	})
}

// TestLeasesOfEarlierConfigurations: a long lease that an earlier process left does not keep its node ready. A renewal
// counts for its whole duration again.
func TestLeasesOfEarlierConfigurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := lease("left", 3600)
		before := metav1.NewMicroTime(time.Now())
		left.Spec.RenewTime = &before
		back := lease("back", 3600)
		back.Spec.RenewTime = &before
		time.Sleep(time.Minute)
		mine := lease("mine", 3600)
		now := metav1.NewMicroTime(time.Now())
		mine.Spec.RenewTime = &now
		cluster := controllertest.New(node("left", "True"), node("back", "True"), node("mine", "True"), left, back, mine)
		cluster.Start(t, "node-controller", func(env *framework.Env) (framework.Controller, error) {
			return New(env, Config{Grace: 40 * time.Second, LeasesSince: now.Time}, NewMetrics())
		})
		time.Sleep(30 * time.Second)
		renew(t, cluster, "back")
		time.Sleep(30 * time.Minute)
		for name, want := range map[string]corev1.ConditionStatus{
			"left": corev1.ConditionUnknown,
			"back": corev1.ConditionTrue,
			"mine": corev1.ConditionTrue,
		} {
			if got := readiness(get(t, cluster, name)); got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
	})
}

// TestShorterLease: a lease that no longer lasts as long as before counts from then on.
func TestShorterLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(node("a", "True"), node("b", "True"), lease("a", 7200), lease("b", 7200))
		begin(t, cluster)
		time.Sleep(time.Minute)
		l, err := cluster.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seconds := int32(40)
		l.Spec.LeaseDurationSeconds = &seconds
		if _, err := cluster.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(t.Context(), l,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(42 * time.Second)
		if got := readiness(get(t, cluster, "a")); got != corev1.ConditionUnknown {
			t.Errorf("a: got %s, want Unknown", got)
		}
	})
}
