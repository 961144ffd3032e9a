// SPDX-License-Identifier: Apache-2.0

// Package core decides where pods go. It has the profiles with their plugins and engines, and changes the state that
// decisions are made on: pods that are assumed on nodes, and pod groups that are placed together. The packages loop
// (which schedules) and whatif (which simulates) are built on it.
//
// It has no client and no clock, and no goroutine of it outlives a call: the same state, pods and seed give the same
// decisions. Plugins write to the API server only through the Handle and the Shared parts that the caller makes.
// A Core is not safe for concurrent use; its Cache and Groups are.
//
//	core.go       Core: New makes the profiles; Try decides about a pod; Assume and Forget
//	profile.go    a profile: its plugins by extension point, and an engine for each lane
//	group.go      Group: the attempt for a pod group; dryrun.go: the same in a copy of the cluster
//	engine.go     Engine: one attempt for one pod on a snapshot, a pure function
package core

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/config"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/state"
)

// Config is what a Core is made of.
type Config struct {
	// Cache has the nodes and pods. Groups has the pod groups; nil: the feature gate is off.
	Cache  *state.Cache
	Groups *state.Groups
	// Profiles are those of the configuration. Plugins are the out-of-tree plugins that they can name.
	Profiles []config.Profile
	Plugins  framework.Registry
	// Handle is what plugins get; its Profile is set for each. Shared is for the in-tree plugins.
	Handle framework.Handle
	Shared *plugins.Shared
	// Binder is the HTTP extender that binds pods; nil: there is none.
	Binder *framework.Plugin
	// Observe gets the durations of plugins in some attempts; nil: they are not measured.
	Observe framework.Observe
	// Parallelism is the maximum number of goroutines that filter nodes. Seed seeds the choice among equal nodes.
	Parallelism int
	Seed        uint64
}

// Core is the deciding part of a scheduler.
type Core struct {
	Cache  *state.Cache
	Groups *state.Groups // nil: the feature gate is off

	cfg      Config
	profiles map[string]*Profile
}

// New makes the plugins of all profiles.
func New(cfg Config) (*Core, error) {
	c := &Core{Cache: cfg.Cache, Groups: cfg.Groups, cfg: cfg, profiles: map[string]*Profile{}}
	var first *Profile
	for i := range cfg.Profiles {
		p, err := c.newProfile(&cfg.Profiles[i])
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = p
		} else if first.QueueSort.Name != p.QueueSort.Name { // there is one queue for all
			return nil, fmt.Errorf("profile %q: its queueSort plugin is %s, that of another profile is %s: all "+
				"profiles must have the same", p.SchedulerName, p.QueueSort.Name, first.QueueSort.Name)
		}
		c.profiles[p.SchedulerName] = p
	}
	return c, nil
}

// Profile returns the profile of a pod; nil: the pod names another scheduler.
func (c *Core) Profile(pod *corev1.Pod) *Profile { return c.profiles[pod.Spec.SchedulerName] }

// Profiles returns the profiles by scheduler name. The result must not be modified.
func (c *Core) Profiles() map[string]*Profile { return c.profiles }

// Try makes one attempt for a pod, and assumes nothing. The result is valid until the next one for a pod of the
// profile.
func (c *Core) Try(pod *state.PodInfo) *framework.Attempt {
	return c.Profile(pod.Pod).Engine.Decide(pod, c.Cache.Refresh(), nil)
}

// Placement is a pod with its chosen node: what the plugins need from Reserve to PostBind.
type Placement struct {
	Profile *Profile
	Pod     *state.PodInfo
	Cycle   *framework.CycleState
	Node    string
	// Observe gets the durations of single plugins; nil: the attempt is not sampled.
	Observe framework.Observe
}

// NewPlacement returns the placement of an attempt that chose a node.
func (c *Core) NewPlacement(a *framework.Attempt) *Placement {
	return &Placement{
		Profile: c.Profile(a.Pod.Pod),
		Pod:     a.Pod,
		Cycle:   a.Cycle,
		Node:    a.Chosen.Name,
		Observe: a.Observe,
	}
}

// Measured passes the duration and outcome of a plugin since begin to Observe.
func (p *Placement) Measured(plugin, point string, begin time.Time, err error) {
	if p.Observe == nil {
		return
	}
	status := "Error"
	if st := framework.Rejection(err); err == nil || st != nil {
		status = framework.StatusName(st)
	}
	p.Observe(plugin, point, status, time.Since(begin))
}

// MayTakeLong reports whether a PreBind plugin may take long.
func (p *Placement) MayTakeLong() bool {
	return slices.ContainsFunc(p.Profile.PreBind, func(w framework.Weighted) bool {
		return w.PreBindPreFlight != nil && w.PreBindPreFlight(p.Cycle, p.Pod, p.Node)
	})
}

// Assume counts the pod on its node, and runs Reserve, by measure unless that is nil. After an error it has undone
// both.
func (c *Core) Assume(
	ctx context.Context, p *Placement, node *state.NodeInfo, measure func(reserve func() error) error,
) error {
	if err := c.Cache.Assume(p.Pod, p.Node); err != nil {
		return err
	}
	c.Groups.Assume(p.Pod.Pod)
	if measure == nil {
		measure = func(reserve func() error) error { return reserve() }
	}
	err := measure(func() error { return p.reserve(ctx, node) })
	if err != nil {
		c.Forget(ctx, p)
	}
	return err
}

func (p *Placement) reserve(ctx context.Context, node *state.NodeInfo) error {
	for _, w := range p.Profile.Reserve {
		if w.Reserve == nil { // it only has an Unreserve
			continue
		}
		begin := time.Now()
		err := w.Reserve(ctx, p.Cycle, p.Pod, node)
		if p.Measured(w.Name, "Reserve", begin, err); err != nil {
			return err
		}
	}
	return nil
}

// Forget undoes Assume. The caller reports the free resources to its queue.
func (c *Core) Forget(ctx context.Context, p *Placement) {
	for _, w := range slices.Backward(p.Profile.Reserve) {
		if w.Unreserve != nil {
			w.Unreserve(context.WithoutCancel(ctx), p.Cycle, p.Pod, p.Node)
		}
	}
	c.Cache.Forget(p.Pod.Pod.UID)
	// The informer may have reported the pod on a node meanwhile: then its group counts it.
	if node, _ := c.Cache.Where(p.Pod.Pod.UID); node == "" {
		c.Groups.Forget(p.Pod.Pod)
	}
}

// Permit runs Permit. It returns for how long each plugin makes the pod wait; nil: the pod need not wait.
func (p *Placement) Permit(ctx context.Context) (map[string]time.Duration, error) {
	var waits map[string]time.Duration
	for _, w := range p.Profile.Permit {
		begin := time.Now()
		st, wait := w.Permit(ctx, p.Cycle, p.Pod, p.Node)
		if st != nil {
			p.Measured(w.Name, "Permit", begin, st)
			return nil, st
		}
		p.Measured(w.Name, "Permit", begin, nil)
		if wait > 0 {
			if waits == nil {
				waits = map[string]time.Duration{}
			}
			waits[w.Name] = wait
		}
	}
	return waits, nil
}
