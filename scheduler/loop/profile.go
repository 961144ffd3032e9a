// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/core"
	"keelson/scheduler/dynamicresources"
	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// profile is a profile with what the loop reports about its pods.
type profile struct {
	*core.Profile
	metrics *Metrics
}

// profile returns the profile of a pod; nil: the pod names another scheduler.
func (s *Scheduler) profile(pod *corev1.Pod) *profile { return s.profiles[pod.Spec.SchedulerName] }

// newCore makes the deciding part. Its plugins write through the writers and events of s.
func (s *Scheduler) newCore() (*core.Core, error) {
	cfg := s.source.CoreConfig(s.cfg.Configuration, s.cfg.Plugins, s.cfg.Gates.GenericWorkload, s.cfg.Parallelism)
	s.waitingPods = cfg.Handle.Waiting
	cfg.Shared.Preemption = func(a *configv1.DefaultPreemptionArgs) *framework.Plugin {
		return s.newPreemption(a, cfg.Cache, cfg.Groups)
	}
	cfg.Shared.Devices = s.newDevices
	cfg.Observe = func(plugin, point, status string, took time.Duration) {
		s.metrics.pluginDuration.WithLabelValues(plugin, point, status).Observe(took.Seconds())
	}
	if binder := s.extenders.Binder(); binder != nil {
		cfg.Binder = binder.Plugin()
	}
	return core.New(cfg)
}

// newPreemption makes the plugin DefaultPreemption.
func (s *Scheduler) newPreemption(
	a *configv1.DefaultPreemptionArgs, cache *state.Cache, groups *state.Groups,
) *framework.Plugin {
	return preempt.New(preempt.Config{
		Client:                      s.client,
		Later:                       s.writers.enqueue,
		Budgets:                     s.source.Budgets,
		ProcessExtenders:            s.preemptWithExtenders,
		Unbind:                      s.waitingBindings.preempt,
		RecordPreempted:             s.reports.preempted,
		Log:                         s.log,
		Evictions:                   s.evictions,
		EvictionsDone:               func(pod *corev1.Pod, err error) { s.nominations.evictionsDone(pod, err) },
		Groups:                      groups,
		NodeOf:                      cache.Where,
		ObserveVictims:              func(victims int) { s.metrics.preemptionVictims.Observe(float64(victims)) },
		MinCandidateNodesPercentage: int(*a.MinCandidateNodesPercentage),
		MinCandidateNodesAbsolute:   int(*a.MinCandidateNodesAbsolute),
	}).Descriptor()
}

// newDevices makes the plugin DynamicResources. All profiles share one Tracker and one Searcher.
func (s *Scheduler) newDevices(a *configv1.DynamicResourcesArgs) *framework.Plugin {
	return dynamicresources.New(dynamicresources.Config{
		Tracker:  s.source.Devices,
		Searcher: s.deviceSearcher,
		Client:   s.client,
		Claims:   s.cfg.Claims,
		Later:    s.writers.enqueue,
		Filter:   a.FilterTimeout.Duration,
		Binding:  a.BindingTimeout.Duration,
		Waiting: func(pod *corev1.Pod, node string) {
			s.reports.about(pod).Eventf(pod, nil, corev1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
				"waiting for binding conditions for device on node %s", node)
		},
		Failed: func(pod *corev1.Pod, err error) {
			s.log.Warn("device claim not written", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		},
	}).Descriptor()
}

// newDeviceSearcher makes what searches devices for a pod between the scheduling cycles.
func (s *Scheduler) newDeviceSearcher() *dynamicresources.Searcher {
	return dynamicresources.NewSearcher(dynamicresources.SearcherConfig{
		Tracker:       s.source.Devices,
		BetweenCycles: s.betweenCycles,
		IsWaiting:     func(pod types.UID) bool { return s.queue.Has(pod) },
		Activate: func(pod types.UID) {
			s.queue.OnEvent(framework.Event{
				Kinds:     framework.Objects,
				Resource:  dynamicresources.Searches,
				NewObject: pod,
			})
		},
	})
}

// betweenCycles runs f between two scheduling cycles of any lane.
func (s *Scheduler) betweenCycles(f func()) {
	s.cycleLock.Lock()
	defer s.cycleLock.Unlock()
	f()
}

func (s *Scheduler) queueConfig() queue.Config {
	c := queue.Config{
		Profiles:       map[string]queue.Rules{},
		Entered:        s.entered,
		Groups:         s.core.Groups != nil,
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
		c.Less = p.QueueSort.QueueSort
	}
	return c
}
