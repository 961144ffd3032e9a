// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/scheduler/dynamicresources"
)

// UsesDevices reports whether a profile has the plugin of devices.
func (s *Source) UsesDevices() bool { return s.uses(dynamicresources.Name) }

// watchDevices watches claims, slices, classes and DeviceTaintRules, if a profile uses them and the API server serves
// them. The Tracker gets each event before the queue, so that a pod that the event moves sees the freed devices.
func (s *Source) watchDevices(seen map[schema.GroupVersionResource]bool) ([]cache.DoneChecker, error) {
	for _, r := range []schema.GroupVersionResource{
		dynamicresources.Claims, dynamicresources.Slices, dynamicresources.Classes, dynamicresources.TaintRules,
		dynamicresources.Searches,
	} {
		seen[r] = true
	}
	serves := func(resource string) bool { return s.serves(resourcev1.SchemeGroupVersion, resource) }
	if !s.UsesDevices() || !serves(dynamicresources.Claims.Resource) {
		return nil, nil
	}
	claims, others := s.Devices.Watch(s.Informers, serves)
	report := s.objectChanged(dynamicresources.Claims)
	reg, err := claims.AddEventHandler(eachObject(func(old, now any) {
		s.claimChanged(old, now)
		report(old, now)
	}))
	if err != nil {
		return nil, fmt.Errorf("watch resource claims: %w", err)
	}
	synced := []cache.DoneChecker{reg.HasSyncedChecker()}
	for of, inf := range others {
		report := s.objectChanged(of)
		reg, err := inf.AddEventHandler(eachObject(func(old, now any) {
			s.Devices.DevicesChanged()
			report(old, now)
		}))
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", of.Resource, err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	return synced, nil
}

func (s *Source) claimChanged(old, now any) {
	before, _ := client.Delivered[*resourcev1.ResourceClaim](old)
	after, _ := client.Delivered[*resourcev1.ResourceClaim](now)
	s.Devices.ClaimChanged(before, after)
}

// serves reports whether the API server serves a resource.
func (s *Source) serves(gv schema.GroupVersion, resource string) bool {
	return Serves(s.client, gv.WithResource(resource))
}

// Serves reports whether the API server of a client serves a resource.
func Serves(c *client.Client, resource schema.GroupVersionResource) bool {
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
