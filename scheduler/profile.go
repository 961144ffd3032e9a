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

// profile is a profile with its plugins by extension point, and an engine for each lane.
type profile struct {
	*framework.Profile
	name              string
	engine            *framework.Engine
	extenderEngine    *framework.Engine // for the extender lane
	postFilter        []framework.PostFilterer
	reserve           []framework.Reserver
	permit            []framework.Permitter
	placementFeasible []framework.PlacementFeasible
	groupPostFilter   []framework.PodGroupPostFilterer
	preBind           []framework.PreBinder
	bind              []framework.Binder
	postBind          []framework.PostBinder
	events            events.EventRecorder // set by startEvents
	queueSort         framework.QueueSorter
	enqueueExtensions []framework.EnqueueExtensions
	metrics           *metrics
}

func newProfile(of *framework.Profile, parallelism int, binder *extender.Binder) (*profile, error) {
	if err := of.Validate(); err != nil {
		return nil, err
	}
	seed := uint64(time.Now().UnixNano()) // any will do
	p := &profile{Profile: of, name: of.SchedulerName}
	of.Observe = p.observePlugin
	*p = profile{
		Profile:           of,
		name:              of.SchedulerName,
		engine:            framework.NewEngine(of, parallelism, seed),
		extenderEngine:    framework.NewEngine(of, parallelism, seed+1),
		postFilter:        framework.PluginsAt[framework.PostFilterer](of, framework.AtPostFilter),
		reserve:           framework.PluginsAt[framework.Reserver](of, framework.AtReserve),
		permit:            framework.PluginsAt[framework.Permitter](of, framework.AtPermit),
		placementFeasible: framework.AllPlugins[framework.PlacementFeasible](of),
		groupPostFilter:   framework.PluginsAt[framework.PodGroupPostFilterer](of, framework.AtPostFilter),
		preBind:           framework.PluginsAt[framework.PreBinder](of, framework.AtPreBind),
		bind:              framework.PluginsAt[framework.Binder](of, framework.AtBind),
		postBind:          framework.PluginsAt[framework.PostBinder](of, framework.AtPostBind),
		queueSort:         framework.PluginsAt[framework.QueueSorter](of, framework.AtQueueSort)[0],
		enqueueExtensions: framework.AllPlugins[framework.EnqueueExtensions](of),
	}
	if binder != nil {
		p.bind = append([]framework.Binder{binder}, p.bind...)
		p.preBind = append(p.preBind, binder)
	}
	return p, nil
}

// makeProfiles creates the plugins of all profiles.
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
			sort = p.queueSort.Name()
		} else if sort != p.queueSort.Name() {
			return fmt.Errorf("profile %q: its queueSort plugin is %s, that of another profile is %s: all profiles "+
				"must have the same", p.name, p.queueSort.Name(), sort)
		}
		s.profiles[p.name] = p
	}
	return nil
}

// registry returns the factories of all plugins.
func (s *Scheduler) registry() framework.Registry {
	r := plugins.InTree(plugins.Options{
		Storage:  s.storage,
		Policies: &s.activePolicies,
		Spread:   plugins.PodTopologySpread{DefaultSelector: s.defaultSelector.selector},
	})
	r[preempt.Name] = func(args any, _ *framework.Handle) (framework.Plugin, error) {
		a, ok := args.(*configv1.DefaultPreemptionArgs)
		if !ok {
			return nil, fmt.Errorf("plugin %s: its arguments are a %T", preempt.Name, args)
		}
		return preempt.New(preempt.Config{
			Client:                      s.client,
			Later:                       s.enqueueWrite,
			Budgets:                     s.listPDBs,
			ProcessExtenders:            s.preemptWithExtenders,
			RecordPreempted:             s.eventPreempted,
			Log:                         s.log,
			Evictions:                   s.evictions,
			EvictionsDone:               s.evictionsDone,
			Groups:                      s.groups,
			NodeOf:                      s.cache.Where,
			ObserveVictims:              func(victims int) { s.metrics.preemptionVictims.Observe(float64(victims)) },
			MinCandidateNodesPercentage: int(*a.MinCandidateNodesPercentage),
			MinCandidateNodesAbsolute:   int(*a.MinCandidateNodesAbsolute),
		}), nil
	}
	r[dynamicresources.Name] = s.newDynamicResources
	maps.Copy(r, s.cfg.Plugins)
	return r
}

func (s *Scheduler) makePlugins(profile *config.Profile, registry framework.Registry) (*framework.Profile, error) {
	handle := &framework.Handle{
		Profile:     profile.SchedulerName,
		Client:      s.client,
		Dynamic:     s.cfg.Client.Dynamic,
		Informers:   s.informers,
		Waiting:     &s.waitingPods,
		Log:         s.log,
		DeviceClass: func(name corev1.ResourceName) string { return s.deviceTracker.DeviceClass(name) },
	}
	of := &framework.Profile{
		SchedulerName:            profile.SchedulerName,
		Points:                   map[framework.Point][]framework.Weighted{},
		PercentageOfNodesToScore: profile.PercentageOfNodesToScore,
	}
	made := map[string]framework.Plugin{}
	for _, name := range profile.Plugins() {
		factory, ok := registry[name]
		if !ok {
			return nil, fmt.Errorf("there is no plugin %q", name)
		}
		p, err := factory(profile.Args[name], handle)
		if err != nil {
			return nil, err
		}
		made[name] = p
		of.Plugins = append(of.Plugins, framework.Weighted{Plugin: p, Weight: 1})
	}
	for point, list := range profile.Points {
		at := []framework.Weighted{}
		for _, p := range list {
			at = append(at, framework.Weighted{Plugin: made[p.Name], Weight: p.Weight})
		}
		of.Points[point] = at
	}
	if s.groups != nil {
		gang := framework.Weighted{Plugin: plugins.GangScheduling{Groups: s.groups, Waiting: &s.waitingPods}, Weight: 1}
		of.Plugins = append(of.Plugins, gang)
		for _, point := range []framework.Point{framework.AtPreEnqueue, framework.AtPermit} {
			of.Points[point] = append(of.Points[point], gang)
		}
	}
	return of, nil
}

// profile returns the profile of a pod; nil: the pod names another scheduler.
func (s *Scheduler) profile(pod *corev1.Pod) *profile { return s.profiles[pod.Spec.SchedulerName] }

func (s *Scheduler) queueConfig() queue.Config {
	c := queue.Config{
		Profiles:       map[string]queue.Rules{},
		Entered:        s.entered,
		Groups:         s.groups != nil,
		InitialBackoff: s.cfg.Configuration.InitialBackoff(),
		MaxBackoff:     s.cfg.Configuration.MaxBackoff(),
	}
	for name, p := range s.profiles {
		r := queue.Rules{
			Gates: framework.PluginsAt[framework.PreEnqueuer](p.Profile, framework.AtPreEnqueue),
			Hints: map[string][]framework.ClusterEventWithHint{},
		}
		for _, e := range p.enqueueExtensions {
			r.Hints[e.Name()] = e.EventsToRegister()
		}
		c.Profiles[name] = r
		c.Less = p.queueSort.Less
	}
	return c
}
