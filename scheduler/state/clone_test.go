// SPDX-License-Identifier: Apache-2.0

package state_test

import (
	"fmt"
	"testing"

	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// TestClone: a change of a clone does not show in the cache, and no change of the cache in the clone.
func TestClone(t *testing.T) {
	cache := state.NewCache()
	for i := range 3 {
		cache.SetNode(schedtest.Node(fmt.Sprint("n", i)))
		cache.SetPod(schedtest.Pod(fmt.Sprint("p", i), schedtest.On(fmt.Sprint("n", i)), schedtest.Priority(int32(i))))
	}
	cache.Refresh()
	cache.SetPod(schedtest.Pod("late", schedtest.On("n0"), schedtest.Priority(9))) // not in the snapshot yet
	count := func(c *state.Cache) string {
		out := ""
		for _, n := range c.Refresh().Nodes {
			out += fmt.Sprintf("%s:%d:%dm ", n.Name, len(n.Pods), n.Requested.MilliCPU)
		}
		return out
	}
	d := cache.Clone(func(p *state.PodInfo) bool { return p.Priority == 1 })
	if got := count(d); got != "n0:2:200m n1:0:0m n2:1:100m " {
		t.Errorf("clone: %s", got)
	}
	if err := d.Assume(state.NewPodInfo(schedtest.Pod("new")), "n1"); err != nil {
		t.Fatal(err)
	}
	d.RemovePod("pod-default-p0")
	cache.RemovePod("pod-default-late")
	if got := count(d); got != "n0:1:100m n1:1:100m n2:1:100m " {
		t.Errorf("clone, changed: %s", got)
	}
	if got := count(cache); got != "n0:1:100m n1:1:100m n2:1:100m " {
		t.Errorf("cache: %s", got)
	}
	if node, _ := cache.Where("pod-default-p1"); node != "n1" {
		t.Errorf("p1 is on %q, want n1", node)
	}
}
