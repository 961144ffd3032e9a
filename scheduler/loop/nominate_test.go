// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"keelson/event"
	"keelson/scheduler/framework"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// leaveSlowly has deleted pods stay until gone is called.
func (c *cluster) leaveSlowly() {
	c.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		d := a.(k8stesting.DeleteAction)
		o, err := c.Tracker().Get(podResource, d.GetNamespace(), d.GetName())
		if err != nil {
			return true, nil, err
		}
		pod := o.(*corev1.Pod).DeepCopy()
		pod.DeletionTimestamp = new(metav1.Now())
		return true, nil, c.Tracker().Update(podResource, pod, d.GetNamespace())
	})
}

// soon is long enough for everything that an event sets off, and no pod is tried again for that time alone.
const soon = 20 * time.Second

func (c *cluster) gone(name string) {
	c.t.Helper()
	if err := c.Tracker().Delete(podResource, "default", name); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(soon)
}

func (c *cluster) bring(pod *corev1.Pod) {
	c.t.Helper()
	if err := c.Tracker().Add(pod); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(soon)
}

// tried checks how often a pod has been tried, and where it is now.
func (c *cluster) tried(when, name string, want int, node string) {
	c.t.Helper()
	n := 0
	c.mu.Lock()
	for _, m := range c.marks {
		if m.Step == event.StepDecision && m.Subject.Name == name {
			n++
		}
	}
	c.mu.Unlock()
	if got := c.pod(name).Spec.NodeName; n != want || got != node {
		c.t.Errorf("%s: %s was tried %d times and is on %q, want %d and %q", when, name, n, got, want, node)
	}
}

// TestWaitsForItsLastVictim: a nominated pod is not tried again while it has no room, and preempts no other pod.
func TestWaitsForItsLastVictim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := start(t, schedtest.Node("node-1"), schedtest.Node("node-2"))
		cluster.leaveSlowly()
		for _, name := range []string{"a", "b", "c", "d"} {
			cluster.bring(schedtest.Pod(name, schedtest.On("node-1"), schedtest.Requests("1", "")))
			cluster.bring(schedtest.Pod("other-"+name, schedtest.On("node-2"), schedtest.Requests("1", ""),
				schedtest.Priority(5)))
		}
		cluster.bring(schedtest.Pod("high", schedtest.Requests("4", ""), schedtest.Priority(10)))
		if got := cluster.pod("high").Status.NominatedNodeName; got != "node-1" {
			t.Fatalf("nominated to %q, want node-1", got)
		}
		cluster.tried("at first", "high", 1, "")
		for _, name := range []string{"a", "b", "c"} {
			cluster.gone(name)
			cluster.tried("after "+name, "high", 1, "")
		}
		cluster.gone("d")
		cluster.tried("after the last one", "high", 2, "node-1")
		if cluster.pod("other-a").DeletionTimestamp != nil {
			t.Error("pods of another node were driven away too")
		}
	})
}

// TestRoomIsAnothers: a pod whose victims are gone looks elsewhere when something more important has taken their room.
func TestRoomIsAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := start(t, schedtest.Node("node-1"), schedtest.Node("node-2"),
			schedtest.Pod("low", schedtest.On("node-1"), schedtest.Requests("4", "")),
			schedtest.Pod("other", schedtest.On("node-2"), schedtest.Requests("4", ""), schedtest.Priority(5)))
		cluster.leaveSlowly()
		cluster.bring(schedtest.Pod("high", schedtest.Requests("4", ""), schedtest.Priority(10)))
		cluster.bring(schedtest.Pod("taker", schedtest.On("node-1"), schedtest.Requests("4", ""),
			schedtest.Priority(20)))
		cluster.tried("its victim is there", "high", 1, "")
		cluster.gone("low")
		cluster.tried("its room is another's", "high", 2, "")
		if p := cluster.pod("high"); p.Status.NominatedNodeName != "node-2" ||
			cluster.pod("other").DeletionTimestamp == nil {
			t.Errorf("nominated to %q, want node-2, from which the other pod goes", p.Status.NominatedNodeName)
		}
		cluster.gone("other")
		cluster.tried("its second victim is gone", "high", 3, "node-2")
	})
}

// TestRoomIsGivenUp: room that was kept for a nominated pod is other pods' when that pod is gone.
func TestRoomIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := schedtest.Pod("kept", schedtest.Requests("4", ""), schedtest.Priority(10))
		kept.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/later"}}
		kept.Status.NominatedNodeName = "node-1"
		c := start(t, schedtest.Node("node-1"), kept)
		c.bring(schedtest.Pod("low", schedtest.Requests("1", "")))
		c.bring(schedtest.Pod("large", schedtest.Requests("5", "")))
		c.tried("the room is kept", "low", 1, "")
		c.gone("kept")
		c.tried("it is given up", "low", 2, "node-1")
		c.tried("it is given up", "large", 1, "")
	})
}

// TestEvictionFails: a pod whose victim cannot be deleted is tried again.
func TestEvictionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, schedtest.Node("node-1"),
			schedtest.Pod("low", schedtest.On("node-1"), schedtest.Requests("4", "")))
		var failed atomic.Bool
		c.PrependReactor("delete", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			return failed.CompareAndSwap(false, true), nil, errors.New("the server is in a bad mood")
		})
		c.bring(schedtest.Pod("high", schedtest.Requests("4", ""), schedtest.Priority(10)))
		c.tried("after a failure", "high", 3, "node-1")
	})
}

// amidst is a plugin that runs do once, while a pod has been given its node.
type amidst struct {
	pod string
	do  func()
}

func (a *amidst) plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:    "Amidst",
		Reserve: a.Reserve,
	}
}

func (a *amidst) Reserve(_ context.Context, _ *framework.CycleState, p *state.PodInfo, _ *state.NodeInfo) error {
	if do := a.do; p.Pod.Name == a.pod && do != nil {
		a.do = nil
		do()
	}
	return nil
}

// TestRoomOfATriedGroup: a pod leaves while a pod group that cannot be placed has the rest of the room. Only a pod that
// needs both rooms is tried again.
func TestRoomOfATriedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		during := &amidst{pod: "g-0"}
		plugin := with(framework.Registry{"Amidst": made(during.plugin())})
		cluster := startWith(t, func(cfg *loop.Config) {
			groups(cfg)
			plugin(cfg)
		}, schedtest.Node("node-1"),
			schedtest.Pod("old", schedtest.On("node-1"), schedtest.Requests("2", "")))
		cluster.bring(schedtest.Pod("waits", schedtest.Requests("3", "")))
		cluster.bring(schedtest.Pod("large", schedtest.Requests("5", "")))
		during.do = func() { cluster.gone("old") }
		cluster.add(schedtest.Gang("g", 2), schedtest.Pod("g-0", schedtest.InGroup("g"), schedtest.Requests("2", "")))
		cluster.bring(schedtest.Pod("g-1", schedtest.InGroup("g"), schedtest.Requests("3", "")))
		time.Sleep(soon)
		cluster.tried("the group gave its room back", "waits", 2, "node-1")
		cluster.tried("the group gave its room back", "large", 1, "")
		if n := cluster.countBound("g"); n != 0 || during.do != nil {
			t.Errorf("%d pods of the group are bound; it was tried: %t", n, during.do == nil)
		}
	})
}
