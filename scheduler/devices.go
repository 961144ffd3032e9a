// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/client"
	"keelson/scheduler/dynamicresources"
	"keelson/scheduler/framework"
)

// newDynamicResources makes the plugin. All profiles share one Tracker and one Searcher.
func (s *Scheduler) newDynamicResources(a *configv1.DynamicResourcesArgs) *framework.Plugin {
	if s.deviceTracker == nil {
		s.deviceTracker = dynamicresources.NewTracker()
		s.deviceSearcher = dynamicresources.NewSearcher(dynamicresources.SearcherConfig{
			Tracker:       s.deviceTracker,
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
	return dynamicresources.New(dynamicresources.Config{
		Tracker:  s.deviceTracker,
		Searcher: s.deviceSearcher,
		Client:   s.client,
		Later:    s.enqueueWrite,
		Filter:   a.FilterTimeout.Duration,
		Binding:  a.BindingTimeout.Duration,
		Waiting: func(pod *corev1.Pod, node string) {
			s.profile(pod).events.Eventf(pod, nil, corev1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
				"waiting for binding conditions for device on node %s", node)
		},
		Failed: func(pod *corev1.Pod, err error) {
			s.log.Warn("device claim not written", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		},
	}).Descriptor()
}

// watchDevices watches claims, slices, classes and DeviceTaintRules, if a profile uses them and the API server serves
// them. The Tracker gets each event of a claim before the queue, so that a pod that the event moves sees the freed
// devices.
func (s *Scheduler) watchDevices(
	factory informers.SharedInformerFactory, seen map[schema.GroupVersionResource]bool,
) ([]cache.DoneChecker, error) {
	for _, r := range []schema.GroupVersionResource{
		dynamicresources.Claims, dynamicresources.Slices, dynamicresources.Classes, dynamicresources.TaintRules,
		dynamicresources.Searches,
	} {
		seen[r] = true
	}
	serves := func(resource string) bool { return s.serves(resourcev1.SchemeGroupVersion, resource) }
	if s.deviceTracker == nil || !serves(dynamicresources.Claims.Resource) {
		return nil, nil
	}
	claims, others := s.deviceTracker.Watch(factory, serves)
	queue := s.resourceEventHandler(dynamicresources.Claims)
	registration, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			s.setClaim(nil, o)
			queue.OnAdd(o, false)
		},
		UpdateFunc: func(old, now any) {
			s.setClaim(old, now)
			queue.OnUpdate(old, now)
		},
		DeleteFunc: func(o any) {
			s.setClaim(o, nil)
			queue.OnDelete(o)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch resource claims: %w", err)
	}
	synced := []cache.DoneChecker{registration.HasSyncedChecker()}
	for of, inf := range others {
		queue := s.resourceEventHandler(of)
		reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) {
				s.deviceTracker.DevicesChanged()
				queue.OnAdd(o, false)
			},
			UpdateFunc: func(old, now any) {
				s.deviceTracker.DevicesChanged()
				queue.OnUpdate(old, now)
			},
			DeleteFunc: func(o any) {
				s.deviceTracker.DevicesChanged()
				queue.OnDelete(o)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", of.Resource, err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	return synced, nil
}

// betweenCycles runs f between two scheduling cycles of any lane.
func (s *Scheduler) betweenCycles(f func()) {
	s.cycleLock.Lock()
	defer s.cycleLock.Unlock()
	f()
}

func (s *Scheduler) setClaim(old, now any) {
	before, _ := client.Delivered[*resourcev1.ResourceClaim](old)
	after, _ := client.Delivered[*resourcev1.ResourceClaim](now)
	s.deviceTracker.ClaimChanged(before, after)
}

// serves reports whether the API server serves a resource.
func (s *Scheduler) serves(gv schema.GroupVersion, resource string) bool {
	return serves(s.cfg.Client, gv.WithResource(resource))
}

func serves(c *client.Client, resource schema.GroupVersionResource) bool {
	if c == nil {
		return false
	}
	list, err := c.Discovery().ServerResourcesForGroupVersion(resource.GroupVersion().String())
	if err != nil {
		return false
	}
	for i := range list.APIResources {
		if list.APIResources[i].Name == resource.Resource {
			return true
		}
	}
	return false
}
