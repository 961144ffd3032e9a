// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/config"
	"keelson/scheduler/core"
	"keelson/scheduler/extender"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
)

// profile is a profile with its plugins by extension point, and an engine for each lane.
type profile struct {
	*framework.Profile
	name           string
	engine         *core.Engine
	extenderEngine *core.Engine // for the extender lane
	postFilter     []framework.Weighted
	reserve        []framework.Weighted
	permit         []framework.Weighted
	preBind        []framework.Weighted
	bind           []framework.Weighted
	postBind       []framework.Weighted
	events         events.EventRecorder // set by startEvents
	queueSort      *framework.Plugin
	metrics        *metrics
}

func newProfile(of *framework.Profile, parallelism int, binder *extender.Binder) (*profile, error) {
	if err := of.Validate(); err != nil {
		return nil, err
	}
	seed := uint64(time.Now().UnixNano()) // any will do
	p := &profile{Profile: of, name: of.SchedulerName}
	of.Observe = p.observePlugin
	*p = profile{
		Profile:        of,
		name:           of.SchedulerName,
		engine:         core.NewEngine(of, parallelism, seed),
		extenderEngine: core.NewEngine(of, parallelism, seed+1),
		postFilter:     of.At(framework.AtPostFilter),
		reserve:        of.At(framework.AtReserve),
		permit:         of.At(framework.AtPermit),
		preBind:        of.At(framework.AtPreBind),
		bind:           of.At(framework.AtBind),
		postBind:       of.At(framework.AtPostBind),
		queueSort:      of.At(framework.AtQueueSort)[0].Plugin,
	}
	if binder != nil {
		by := framework.Weighted{Plugin: binder.Plugin()}
		p.bind = append([]framework.Weighted{by}, p.bind...)
		p.preBind = append(p.preBind, by)
	}
	return p, nil
}

// makeProfiles creates the plugins of all profiles.
func (s *Scheduler) makeProfiles() error {
	s.profiles = map[string]*profile{}
	shared := s.shared()
	var sort string
	for i := range s.cfg.Configuration.Profiles {
		c := &s.cfg.Configuration.Profiles[i]
		of, err := s.makePlugins(c, shared)
		if err != nil {
			return fmt.Errorf("profile %q: %w", c.SchedulerName, err)
		}
		p, err := newProfile(of, s.cfg.Parallelism, s.extenders.Binder())
		if err != nil {
			return err
		}
		p.metrics = s.metrics
		if sort == "" {
			sort = p.queueSort.Name
		} else if sort != p.queueSort.Name {
			return fmt.Errorf("profile %q: its queueSort plugin is %s, that of another profile is %s: all profiles "+
				"must have the same", p.name, p.queueSort.Name, sort)
		}
		s.profiles[p.name] = p
	}
	return nil
}

// shared has what the in-tree plugins of all profiles share.
func (s *Scheduler) shared() *plugins.Shared {
	return &plugins.Shared{
		Storage:         s.storage,
		Policies:        &s.activePolicies,
		DefaultSelector: s.defaultSelector.selector,
		Preemption:      s.newPreemption,
		Devices:         s.newDynamicResources,
	}
}

func (s *Scheduler) newPreemption(a *configv1.DefaultPreemptionArgs) *framework.Plugin {
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
	}).Descriptor()
}

// makePlugin makes a plugin: an out-of-tree plugin comes before an in-tree one of the same name.
func (s *Scheduler) makePlugin(
	name string, args any, handle *framework.Handle, shared *plugins.Shared,
) (*framework.Plugin, error) {
	if factory, ok := s.cfg.Plugins[name]; ok {
		return factory(args, handle)
	}
	if row := plugins.Find(name); row != nil {
		return row.Make(args, handle, shared)
	}
	return nil, fmt.Errorf("there is no plugin %q", name)
}

func (s *Scheduler) makePlugins(profile *config.Profile, shared *plugins.Shared) (*framework.Profile, error) {
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
	made := map[string]*framework.Plugin{}
	for _, name := range profile.Plugins() {
		p, err := s.makePlugin(name, profile.Args[name], handle, shared)
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
		gang := framework.Weighted{
			Plugin: plugins.GangScheduling{Groups: s.groups, Waiting: &s.waitingPods}.Plugin(),
			Weight: 1,
		}
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
			Gates: p.At(framework.AtPreEnqueue),
			Hints: map[string][]framework.ClusterEventWithHint{},
		}
		for _, plugin := range p.Plugins {
			if plugin.Events != nil {
				r.Hints[plugin.Name] = plugin.Events
			}
		}
		c.Profiles[name] = r
		c.Less = p.queueSort.QueueSort
	}
	return c
}
