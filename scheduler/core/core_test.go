// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"context"
	"errors"
	"testing"

	"keelson/scheduler/config"
	"keelson/scheduler/core"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// newCore returns a core with the default configuration and without a client, for nodes with 4 CPUs.
func newCore(t *testing.T, out framework.Registry, nodes ...string) *core.Core {
	t.Helper()
	cfg := core.Config{
		Cache:    state.NewCache(),
		Groups:   state.NewGroups(),
		Profiles: config.Default().Profiles,
		Plugins:  out,
		Handle:   framework.Handle{Waiting: &framework.WaitingPods{}},
		Shared:   &plugins.Shared{},
		Seed:     1,
	}
	c, err := core.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		c.Cache.SetNode(schedtest.Node(n))
	}
	return c
}

func podOf(name, cpu string, o ...schedtest.PodOption) *state.PodInfo {
	return state.NewPodInfo(schedtest.Pod(name, append(o, schedtest.Requests(cpu, ""))...))
}

// TestAssume: a pod counts on its node from Assume to Forget, and not if a Reserve plugin fails.
func TestAssume(t *testing.T) {
	var refuse error
	undone := 0
	c := newCore(t, framework.Registry{
		"DefaultBinder": func(any, *framework.Handle) (*framework.Plugin, error) { // in place of the in-tree one
			return &framework.Plugin{
				Name: "DefaultBinder",
				Bind: func(context.Context, *framework.CycleState, *state.PodInfo, string) error { return nil },
				Reserve: func(context.Context, *framework.CycleState, *state.PodInfo, *state.NodeInfo) error {
					return refuse
				},
				Unreserve: func(context.Context, *framework.CycleState, *state.PodInfo, string) { undone++ },
			}, nil
		},
	}, "a")
	second := podOf("second", "3")
	first := c.Try(podOf("first", "3"))
	if first.Chosen == nil {
		t.Fatal(first.Message())
	}
	node := first.Chosen
	placed := c.NewPlacement(first)
	if err := c.Assume(t.Context(), placed, node, nil); err != nil {
		t.Fatal(err)
	}
	if c.Try(second).Chosen != nil {
		t.Error("the assumed pod does not count")
	}
	c.Forget(t.Context(), placed)
	if c.Try(second).Chosen == nil || undone != 1 {
		t.Errorf("the forgotten pod counts, or was not unreserved (%d times)", undone)
	}
	refuse = errors.New("no disk")
	measured := false
	if err := c.Assume(t.Context(), placed, node, func(reserve func() error) error {
		measured = true
		return reserve()
	}); !errors.Is(err, refuse) || !measured || undone != 2 {
		t.Errorf("got %v, measured %t, unreserved %d times", err, measured, undone)
	}
	if c.Try(second).Chosen == nil {
		t.Error("a pod that Reserve refused counts")
	}
}

// placer decides by the core alone.
type placer struct {
	c    *core.Core
	pods []*state.PodInfo
	// stopAt is the member at which the attempt must be made again; -1: at none.
	stopAt int
}

func (p *placer) Decide(_ context.Context, at int) *framework.Attempt {
	if at == p.stopAt {
		return nil
	}
	return p.c.Try(p.pods[at])
}

func (p *placer) Assume(ctx context.Context, _ int, on *core.Placement, node *state.NodeInfo) error {
	return p.c.Assume(ctx, on, node, nil)
}

func (p *placer) DecideIn(_ context.Context, dryRun *core.DryRun, pod *state.PodInfo) *framework.Attempt {
	return dryRun.Engine.Decide(pod, dryRun.Cache.Refresh(), nil)
}

// TestTryGroup: the pods of a gang have nodes together, or none of them counts anywhere.
func TestTryGroup(t *testing.T) {
	for _, tt := range []struct {
		name      string
		least     int32
		priority  int32 // of the last pod
		stopAt    int
		placed    int
		again     bool
		status    string
		wantError bool
	}{
		{name: "two of three are enough", least: 2, stopAt: -1, placed: 2},
		{
			name: "three are needed", least: 3, stopAt: -1,
			status: "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining",
		},
		{name: "unlike pods", least: 2, priority: 7, stopAt: -1, wantError: true},
		{name: "stopped", least: 2, stopAt: 1, again: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCore(t, nil, "a", "b")
			group := schedtest.Gang("g", tt.least)
			c.Groups.SetObject(state.GroupKey{Namespace: "default", Name: "g"}, group)
			p := &placer{c: c, stopAt: tt.stopAt}
			for _, name := range []string{"g-0", "g-1", "g-2"} {
				options := []schedtest.PodOption{schedtest.InGroup("g")}
				if name == "g-2" && tt.priority != 0 {
					options = append(options, schedtest.Priority(tt.priority))
				}
				pod := podOf(name, "3", options...)
				c.Groups.AddPod(pod.Pod)
				p.pods = append(p.pods, pod)
			}
			g := c.NewGroup(p.pods, p)
			if again := c.TryGroup(t.Context(), g); again != tt.again || (g.Err != nil) != tt.wantError {
				t.Fatalf("again %t, error %v", again, g.Err)
			}
			status := ""
			if g.Status != nil {
				status = g.Status.Error()
			}
			if !tt.again && status != tt.status {
				t.Errorf("status %q, want %q", status, tt.status)
			}
			if status != "" {
				g.Forget(t.Context())
			}
			placed := 0
			for _, m := range g.Members {
				if node, _ := c.Cache.Where(m.Pod.Pod.UID); (node != "") != (m.Placement != nil) {
					t.Errorf("%s is on %q, its placement is %v", m.Pod.Key, node, m.Placement)
				} else if node != "" {
					placed++
				}
			}
			if placed != tt.placed {
				t.Errorf("%d pods count on nodes, want %d", placed, tt.placed)
			}
		})
	}
}
