// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/config"
	"keelson/scheduler/dynamicresources"
	"keelson/scheduler/extender"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
)

// profile is a profile's plugins by extension point, and the engines that decide with them: one for each lane.
type profile struct {
	*framework.Profile
	name              string
	engine            *framework.Engine
	outside           *framework.Engine // for the extender lane
	post              []framework.PostFilterer
	reserve           []framework.Reserver
	permit            []framework.Permitter
	placementFeasible []framework.PlacementFeasible
	groupPost         []framework.PodGroupPostFilterer
	preBind           []framework.PreBinder
	bind              []framework.Binder
	postBind          []framework.PostBinder
	events            events.EventRecorder // set by startEvents
	sort              framework.QueueSorter
	extensions        []framework.EnqueueExtensions
	metrics           *metrics
}

func newProfile(of *framework.Profile, parallelism int, binder *extender.Binder) (*profile, error) {
	if err := of.Validate(); err != nil {
		return nil, err
	}
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any will do
	p := &profile{
		Profile: of, name: of.SchedulerName,
		engine:            framework.NewEngine(of, parallelism, seed),
		outside:           framework.NewEngine(of, parallelism, seed+1),
		post:              framework.Of[framework.PostFilterer](of, framework.AtPostFilter),
		reserve:           framework.Of[framework.Reserver](of, framework.AtReserve),
		permit:            framework.Of[framework.Permitter](of, framework.AtPermit),
		placementFeasible: framework.All[framework.PlacementFeasible](of),
		groupPost:         framework.Of[framework.PodGroupPostFilterer](of, framework.AtPostFilter),
		preBind:           framework.Of[framework.PreBinder](of, framework.AtPreBind),
		bind:              framework.Of[framework.Binder](of, framework.AtBind),
		postBind:          framework.Of[framework.PostBinder](of, framework.AtPostBind),
		sort:              framework.Of[framework.QueueSorter](of, framework.AtQueueSort)[0],
		extensions:        framework.All[framework.EnqueueExtensions](of),
	}
	if binder != nil {
		p.bind, p.preBind = append([]framework.Binder{binder}, p.bind...), append(p.preBind, binder)
	}
	return p, nil
}

// makeProfiles makes the plugins of all profiles.
func (s *Scheduler) makeProfiles() error {
	s.profiles = map[string]*profile{}
	registry := s.registry()
	var sort string
	for i := range s.cfg.Configuration.Profiles {
		c := &s.cfg.Configuration.Profiles[i]
		of, err := s.makePlugins(c, registry)
		if err != nil {
			return fmt.Errorf("profile %q: %w", c.SchedulerName, err)
		}
		p, err := newProfile(of, s.cfg.Parallelism, s.extenders.Binder())
		if err != nil {
			return err
		}
		p.metrics = s.metrics
		if sort == "" {
			sort = p.sort.Name()
		} else if sort != p.sort.Name() {
			return fmt.Errorf("profile %q sorts the queue by %s, another by %s; there is one queue", p.name, p.sort.Name(), sort)
		}
		s.profiles[p.name] = p
	}
	return nil
}

// registry are all plugins that can be made.
func (s *Scheduler) registry() framework.Registry {
	r := plugins.InTree(plugins.Options{Storage: s.storage, Policies: &s.inEffect, Spread: plugins.PodTopologySpread{DefaultSelector: s.defaultSelector.selector}})
	r[preempt.Name] = func(args any, _ *framework.Handle) (framework.Plugin, error) {
		a, ok := args.(*configv1.DefaultPreemptionArgs)
		if !ok {
			return nil, fmt.Errorf("plugin %s: its arguments are a %T", preempt.Name, args)
		}
		return preempt.New(preempt.Config{
			Client: s.client, Later: s.later, Budgets: s.listBudgets, Extend: s.askAboutVictims, Event: s.eventPreempted, Log: s.log,
			Evictions: s.evictions, Ended: s.evicted, Groups: s.groups, Where: s.cache.Where,
			Chosen:  func(victims int) { s.metrics.victims.Observe(float64(victims)) },
			Percent: int(*a.MinCandidateNodesPercentage), Least: int(*a.MinCandidateNodesAbsolute),
		}), nil
	}
	r[dynamicresources.Name] = s.newDynamicResources
	maps.Copy(r, s.cfg.Plugins)
	return r
}

func (s *Scheduler) makePlugins(c *config.Profile, registry framework.Registry) (*framework.Profile, error) {
	h := &framework.Handle{
		Profile: c.SchedulerName, Client: s.client, Dynamic: s.cfg.Client.Dynamic, Informers: s.informers, Waiting: &s.permits, Log: s.log,
		DeviceClass: func(name corev1.ResourceName) string { return s.devices.DeviceClass(name) },
	}
	of := &framework.Profile{SchedulerName: c.SchedulerName, Points: map[framework.Point][]framework.Weighted{}, PercentageOfNodes: c.PercentageOfNodes}
	made := map[string]framework.Plugin{}
	for _, name := range c.Plugins() {
		factory, ok := registry[name]
		if !ok {
			return nil, fmt.Errorf("there is no plugin %q", name)
		}
		p, err := factory(c.Args[name], h)
		if err != nil {
			return nil, err
		}
		made[name] = p
		of.Plugins = append(of.Plugins, framework.Weighted{Plugin: p, Weight: 1})
	}
	for point, list := range c.Points {
		at := []framework.Weighted{}
		for _, p := range list {
			at = append(at, framework.Weighted{Plugin: made[p.Name], Weight: p.Weight})
		}
		of.Points[point] = at
	}
	if s.groups != nil {
		gang := framework.Weighted{Plugin: plugins.GangScheduling{Groups: s.groups, Waiting: &s.permits}, Weight: 1}
		of.Plugins = append(of.Plugins, gang)
		for _, point := range []framework.Point{framework.AtPreEnqueue, framework.AtPermit} {
			of.Points[point] = append(of.Points[point], gang)
		}
	}
	return of, nil
}

// profile is that of a pod, or nil: it names another scheduler.
func (s *Scheduler) profile(pod *corev1.Pod) *profile { return s.profiles[pod.Spec.SchedulerName] }

func (s *Scheduler) queueConfig() queue.Config {
	c := queue.Config{
		Profiles: map[string]queue.Rules{}, Entered: s.entered, Groups: s.groups != nil,
		InitialBackoff: s.cfg.Configuration.InitialBackoff(), MaxBackoff: s.cfg.Configuration.MaxBackoff(),
	}
	for name, p := range s.profiles {
		r := queue.Rules{Gates: framework.Of[framework.PreEnqueuer](p.Profile, framework.AtPreEnqueue), Hints: map[string][]framework.ClusterEventWithHint{}}
		for _, e := range p.extensions {
			r.Hints[e.Name()] = e.EventsToRegister()
		}
		c.Profiles[name], c.Less = r, p.sort.Less
	}
	return c
}
