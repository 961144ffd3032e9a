// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/decisions"
	"keelson/api/gates"
	"keelson/scheduler/framework"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// groups has the scheduler, and the fake server, know pod groups.
func groups(c *loop.Config) {
	c.Gates = gates.All()
	schedtest.ServeGroups(c.Client)
}

// countBound counts the pods that have nodes, of those whose names begin so.
func (c *cluster) countBound(prefix string) int {
	c.t.Helper()
	pods, err := c.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	n := 0
	for i := range pods.Items {
		if strings.HasPrefix(pods.Items[i].Name, prefix) && bound(&pods.Items[i]) {
			n++
		}
	}
	return n
}

// allDecisions are all decisions that were reported.
func (c *cluster) allDecisions() []*decisions.Attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*decisions.Attempt
	for _, m := range c.marks {
		if d, ok := m.Detail.(*decisions.Attempt); ok {
			out = append(out, d)
		}
	}
	return out
}

func (c *cluster) pod(name string) *corev1.Pod {
	c.t.Helper()
	p, err := c.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// groupCondition is the group's condition: "False Unschedulable: message".
func (c *cluster) groupCondition(group string) string {
	c.t.Helper()
	g, err := c.SchedulingV1beta1().PodGroups("default").Get(context.Background(), group, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	s := apimeta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
	if s == nil {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s: %s", s.Status, s.Reason, s.Message), ": ")
}

func (c *cluster) add(objs ...runtime.Object) {
	c.t.Helper()
	for _, o := range objs {
		if err := c.Tracker().Add(o); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) remove(name string) {
	c.t.Helper()
	if err := c.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// settle waits until nothing moves any more, for as long as backoffs take.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func startGroups(t *testing.T, objs ...runtime.Object) *cluster {
	t.Helper()
	return startWith(t, groups, objs...)
}

// TestGangAllOrNothing: two of three would fit, so none is bound; with another node all are.
func TestGangAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := startGroups(t, append(schedtest.Members("g", 3, "1500m"), schedtest.Gang("g", 3), schedtest.Node("n1"))...)
		settle()
		const short = "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining, pod group preemption: No " +
			"preemption victims found for incoming preemptor"
		if n, s := cluster.countBound("g"), cluster.groupCondition("g"); n != 0 || s != "False Unschedulable: "+short {
			t.Errorf("%d bound, group %q", n, s)
		}
		said := map[string]int{}
		for i := range 3 {
			cond := scheduledCondition(cluster.pod(fmt.Sprintf("g-%d", i)))
			if cond == nil || cond.Status != corev1.ConditionFalse || cond.Reason != corev1.PodReasonUnschedulable {
				t.Fatalf("pod %d: condition %+v", i, cond)
			}
			said[cond.Message]++
		}
		if said["pod group is unschedulable, "+short] != 2 ||
			said["0/1 nodes are available: 1 Insufficient cpu."] != 1 {
			t.Errorf("pods say %v", said)
		}
		texts := map[string]int{}
		for _, d := range cluster.allDecisions() {
			texts[d.Node+"|"+d.PodGroup]++
		}
		const fits = "|g: 2 of 3 pods fit, 3 must; this one would go to n1; nearest of the others: g-"
		for said, n := range texts {
			if said != "|g: 2 of 3 pods fit, 3 must" &&
				(!strings.HasPrefix(said, fits) || !strings.HasSuffix(said, " fits on n1 if cpu request <= 1")) {
				t.Errorf("%d decisions say %q", n, said)
			}
		}
		if len(texts) < 2 {
			t.Errorf("decisions say %v", texts)
		}
		// A plain pod has the room that they do not take.
		cluster.add(schedtest.Pod("plain", schedtest.Requests("500m", "")))
		settle()
		if !bound(cluster.pod("plain")) {
			t.Error("the plain pod has no node")
		}
		cluster.add(schedtest.Node("n2"))
		settle()
		if n, s := cluster.countBound("g"), cluster.groupCondition("g"); n != 3 || s != "True Scheduled" {
			t.Errorf("%d bound, group %q; want 3, True Scheduled", n, s)
		}
	})
}

// TestTwoGangs: each needs more than half of the cluster; one gets all it needs, and the other goes on when that one
// has ended.
func TestTwoGangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := []runtime.Object{schedtest.Node("n1"), schedtest.Node("n2"), schedtest.Gang("a", 6), schedtest.Gang("b", 6)}
		a := schedtest.Members("a", 6, "1")
		b := schedtest.Members("b", 6, "1")
		for i := range a {
			objs = append(objs, a[i], b[i])
		}
		cluster := startGroups(t, objs...)
		settle()
		first := "a-"
		second := "b-"
		if cluster.countBound("b-") > 0 {
			first, second = second, first
		}
		if cluster.countBound(first) != 6 || cluster.countBound(second) != 0 {
			t.Fatalf("%d of a and %d of b are bound", cluster.countBound("a-"), cluster.countBound("b-"))
		}
		for i := range 6 {
			cluster.remove(fmt.Sprint(first, i))
		}
		settle()
		if n := cluster.countBound(second); n != 6 {
			t.Errorf("%d of the second are bound, want 6", n)
		}
	})
}

// TestGangComesLate: pods wait for their group, then for enough of them; a lower minCount is enough, too.
func TestGangComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := startGroups(t, append(schedtest.Members("g", 3, "1"), schedtest.Node("n1"))...)
		settle()
		if n := cluster.countBound("g"); n != 0 {
			t.Fatalf("%d bound without a group", n)
		}
		cluster.add(schedtest.Gang("g", 5))
		settle()
		if n, s := cluster.countBound("g"), cluster.groupCondition("g"); n != 0 || s != "" {
			t.Fatalf("%d bound of 3, 5 wanted; group %q", n, s)
		}
		if _, err := cluster.SchedulingV1beta1().PodGroups("default").Update(t.Context(), schedtest.Gang("g", 4),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.add(schedtest.Pod("g-3", schedtest.InGroup("g"), schedtest.Requests("1", "")))
		settle()
		if n := cluster.countBound("g"); n != 4 {
			t.Fatalf("%d bound, want 4", n)
		}
		// What comes later goes by itself, and waits if there is no room.
		cluster.add(schedtest.Pod("g-4", schedtest.InGroup("g"), schedtest.Requests("1", "")))
		settle()
		if cond := scheduledCondition(cluster.pod("g-4")); cond == nil ||
			cond.Message != "0/1 nodes are available: 1 Insufficient cpu." ||
			cluster.groupCondition("g") != "True Scheduled" {
			t.Errorf("condition %+v, group %q", cond, cluster.groupCondition("g"))
		}
		cluster.remove("g-0")
		settle()
		if !bound(cluster.pod("g-4")) {
			t.Error("room was made, and the pod has no node")
		}
	})
}

// TestLowerMinCount: a group that did not fit is tried again when its minCount is lowered.
func TestLowerMinCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startGroups(t, append(schedtest.Members("g", 6, "1"), schedtest.Gang("g", 5), schedtest.Node("n1"))...)
		settle()
		if n := c.countBound("g"); n != 0 {
			t.Fatalf("%d bound", n)
		}
		if _, err := c.SchedulingV1beta1().PodGroups("default").Update(t.Context(), schedtest.Gang("g", 4),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if n, s := c.countBound("g"), c.groupCondition("g"); n != 4 || s != "True Scheduled" {
			t.Errorf("%d bound, group %q; want 4", n, s)
		}
	})
}

// TestImpossiblePod: one pod that fits nowhere keeps the whole gang from nodes if it is needed, and only itself if it
// is not.
func TestImpossiblePod(t *testing.T) {
	for least, want := range map[int32]int{4: 0, 3: 3} {
		synctest.Test(t, func(t *testing.T) {
			objs := append(schedtest.Members("g", 3, "1"), schedtest.Gang("g", least), schedtest.Node("n1"),
				schedtest.Pod("g-big", schedtest.InGroup("g"), schedtest.Requests("64", "")))
			c := startGroups(t, objs...)
			settle()
			if n := c.countBound("g"); n != want {
				t.Errorf("minCount %d: %d bound, want %d", least, n, want)
			}
		})
	}
}

// TestUnlikePods: fields that decide for the whole group must be the same in all its pods.
func TestUnlikePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := startGroups(t, schedtest.Node("n1"), schedtest.Gang("g", 2), schedtest.Pod("g-0", schedtest.InGroup("g")),
			schedtest.Pod("g-1", schedtest.InGroup("g"), schedtest.Priority(5)))
		settle()
		const want = "all pods in a single pod group should have the same priority as the pod group's priority, got " +
			"5 and 0"
		if n, s := cluster.countBound("g"), cluster.groupCondition("g"); n != 0 || s != "False SchedulerError: "+want {
			t.Errorf("%d bound, group %q", n, s)
		}
		if cond := scheduledCondition(cluster.pod("g-0")); cond == nil ||
			cond.Reason != corev1.PodReasonSchedulerError ||
			cond.Message != want {
			t.Errorf("condition %+v", cond)
		}
		cluster.remove("g-1")
		cluster.add(schedtest.Pod("g-2", schedtest.InGroup("g")))
		settle()
		if n := cluster.countBound("g"); n != 2 {
			t.Errorf("%d bound, want 2", n)
		}
	})
}

// deletes deletes a pod of a group while the group is being placed.
type deletes struct {
	c    **cluster
	when string
	what string
}

func (d *deletes) plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:    "Deletes",
		Reserve: d.Reserve,
	}
}

func (d *deletes) Reserve(_ context.Context, _ *framework.CycleState, pod *state.PodInfo, _ *state.NodeInfo) error {
	if pod.Pod.Name == d.when {
		d.when = ""
		(*d.c).remove(d.what)
		time.Sleep(time.Second) // until the scheduler has seen it
	}
	return nil
}

// TestDeletedMidCycle: a pod that is deleted while its gang is being placed counts no more, whether it was placed
// already or not.
func TestDeletedMidCycle(t *testing.T) {
	for _, gone := range []string{"g-0", "g-2"} {
		synctest.Test(t, func(t *testing.T) {
			var c *cluster
			d := &deletes{c: &c, when: "g-1", what: gone}
			c = startWith(t, func(cfg *loop.Config) {
				with(framework.Registry{"Deletes": made(d.plugin())})(cfg)
				groups(cfg)
			}, schedtest.Node("n1"))
			c.add(schedtest.Members("g", 3, "1")...)
			c.add(schedtest.Gang("g", 3))
			settle()
			if n := c.countBound("g"); n != 0 || d.when != "" {
				t.Fatalf("%s deleted (%v): %d of 2 bound, 3 wanted", gone, d.when == "", n)
			}
			c.add(schedtest.Pod("g-3", schedtest.InGroup("g"), schedtest.Requests("2", "")))
			settle()
			if n := c.countBound("g"); n != 3 {
				t.Errorf("%s deleted, another came: %d bound, want 3", gone, n)
			}
		})
	}
}

// TestBindingOfGangFails: the pod whose binding failed comes again, and the others stay.
func TestBindingOfGangFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startGroups(t, schedtest.Node("n1"))
		c.refuse.Store(true)
		c.add(append(schedtest.Members("g", 4, "1"), schedtest.Gang("g", 4))...)
		settle()
		if n := c.countBound("g"); n != 4 || c.refuse.Load() {
			t.Errorf("%d bound, want 4", n)
		}
	})
}

// TestKilledBetweenBindings: a scheduler that starts finds a part of a gang bound, and binds the rest though it is less
// than minCount.
func TestKilledBetweenBindings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := append(schedtest.Members("g", 4, "1"), schedtest.Gang("g", 4), schedtest.Node("n1"))
		objs[0].(*corev1.Pod).Spec.NodeName = "n1"
		c := startGroups(t, objs...)
		settle()
		if n, s := c.countBound("g"), c.groupCondition("g"); n != 4 || s != "True Scheduled" {
			t.Errorf("%d bound, group %q", n, s)
		}
	})
}

// TestLargeGangStarvesNoPod: a gang of a thousand that cannot fit is tried again and again, and plain pods get their
// nodes.
func TestLargeGangStarvesNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := append(schedtest.Members("huge", 1000, "1"), schedtest.Gang("huge", 400))
		for i := range 100 {
			objs = append(objs, schedtest.Node(fmt.Sprint("n", i), schedtest.Allocatable(corev1.ResourceCPU, "2")))
		}
		c := startGroups(t, objs...)
		for i := range 100 {
			c.add(schedtest.Pod(fmt.Sprint("plain-", i), schedtest.Requests("1", "")))
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if n, huge := c.countBound("plain"), c.countBound("huge"); n != 100 || huge != 0 {
			t.Errorf("%d of 100 plain pods are bound, and %d of the gang", n, huge)
		}
	})
}

// TestRandomGangs: gangs that come in any order, with nodes that come late, have minCount pods on nodes or none.
func TestRandomGangs(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			var objs []runtime.Object
			least := map[string]int{}
			for i := range 2 + rnd.IntN(6) {
				name := fmt.Sprintf("g%d", i)
				n := 1 + rnd.IntN(9)
				least[name] = 1 + rnd.IntN(n)
				objs = append(append(objs, schedtest.Gang(name, int32(least[name]))),
					schedtest.Members(name, n, []string{"500m", "1", "1500m", "3"}[rnd.IntN(4)])...)
			}
			for i := range 1 + rnd.IntN(6) {
				objs = append(objs, schedtest.Node(fmt.Sprint("n", i)))
			}
			rnd.Shuffle(len(objs), func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
			before := rnd.IntN(len(objs))
			cluster := startGroups(t, objs[:before]...)
			check := func() {
				t.Helper()
				for name, min := range least {
					if n := cluster.countBound(name + "-"); n > 0 && n < min {
						t.Errorf("seed %d: %d pods of %s are bound, minCount %d", seed, n, name, min)
					}
				}
			}
			for _, o := range objs[before:] {
				cluster.add(o)
				if rnd.IntN(4) == 0 {
					time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
					synctest.Wait()
					check()
				}
			}
			settle()
			check()
			used := map[string]int64{}
			pods, err := cluster.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods.Items {
				used[p.Spec.NodeName] += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			}
			delete(used, "")
			for node, m := range used {
				if m > 4000 {
					t.Errorf("seed %d: pods on %s ask for %dm of 4000m", seed, node, m)
				}
			}
		})
	}
}
