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

// newDynamicResources is the factory of the plugin; all profiles share what is known of devices.
func (s *Scheduler) newDynamicResources(args any, _ *framework.Handle) (framework.Plugin, error) {
	a, ok := args.(*configv1.DynamicResourcesArgs)
	if !ok {
		return nil, fmt.Errorf("plugin %s: its arguments are a %T", dynamicresources.Name, args)
	}
	if s.devices == nil {
		s.devices = dynamicresources.NewKnown()
		s.searches = dynamicresources.NewLane(dynamicresources.LaneConfig{
			Known: s.devices, Between: s.between, Waits: func(pod types.UID) bool { return s.queue.Has(pod) },
			Wake: func(pod types.UID) {
				s.queue.OnEvent(framework.Event{Kinds: framework.Objects, Resource: dynamicresources.Searches, NewObject: pod})
			},
		})
	}
	return dynamicresources.New(dynamicresources.Config{
		Known: s.devices, Lane: s.searches, Client: s.client, Later: s.later, Filter: a.FilterTimeout.Duration, Binding: a.BindingTimeout.Duration,
		Waiting: func(pod *corev1.Pod, node string) {
			s.profile(pod).events.Eventf(pod, nil, corev1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
				"waiting for binding conditions for device on node %s", node)
		},
		Failed: func(pod *corev1.Pod, err error) {
			s.log.Warn("device claim not written", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		},
	}), nil
}

// watchDevices watches claims, slices, classes and taint rules of devices, if a profile wants them and the server has them. What is known of claims comes
// before the queue's pods: whom a change wakes finds the devices that it frees.
func (s *Scheduler) watchDevices(f informers.SharedInformerFactory, seen map[schema.GroupVersionResource]bool) ([]cache.DoneChecker, error) {
	for _, r := range []schema.GroupVersionResource{dynamicresources.Claims, dynamicresources.Slices, dynamicresources.Classes, dynamicresources.Rules, dynamicresources.Searches} {
		seen[r] = true
	}
	serves := func(resource string) bool { return s.serves(resourcev1.SchemeGroupVersion, resource) }
	if s.devices == nil || !serves(dynamicresources.Claims.Resource) {
		return nil, nil
	}
	claims, others := s.devices.Watch(f, serves)
	queue := s.tellOf(dynamicresources.Claims)
	told, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.setClaim(nil, o); queue.OnAdd(o, false) },
		UpdateFunc: func(old, now any) {
			s.setClaim(old, now)
			queue.OnUpdate(old, now)
		},
		DeleteFunc: func(o any) { s.setClaim(o, nil); queue.OnDelete(o) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch resource claims: %w", err)
	}
	synced := []cache.DoneChecker{told.HasSyncedChecker()}
	for of, inf := range others {
		queue := s.tellOf(of)
		reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.devices.Offered(); queue.OnAdd(o, false) },
			UpdateFunc: func(old, now any) { s.devices.Offered(); queue.OnUpdate(old, now) },
			DeleteFunc: func(o any) { s.devices.Offered(); queue.OnDelete(o) },
		})
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", of.Resource, err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	return synced, nil
}

// between runs f while no lane decides.
func (s *Scheduler) between(f func()) {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	f()
}

func (s *Scheduler) setClaim(old, now any) {
	before, _ := client.Delivered[*resourcev1.ResourceClaim](old)
	after, _ := client.Delivered[*resourcev1.ResourceClaim](now)
	s.devices.Claim(before, after)
}

// serves tells whether the server has a resource.
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
