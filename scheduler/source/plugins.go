// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/plugins/volumes"
	"keelson/scheduler/policy"
)

// watchStorage watches claims, volumes, and the other storage objects that the volume plugins use.
func (s *Source) watchStorage() ([]cache.DoneChecker, error) {
	all, err := s.Storage.Watch(s.Informers)
	if err != nil {
		return nil, err
	}
	var synced []cache.DoneChecker
	for _, inf := range all {
		reg, err := inf.AddEventHandler(eachObject(s.storageChanged))
		if err != nil {
			return nil, fmt.Errorf("watch storage: %w", err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	return synced, nil
}

func (s *Source) storageChanged(old, now any) {
	event := framework.Event{Kinds: framework.Storage, OldObject: old, NewObject: now}
	latest := now
	if now == nil {
		latest = old
	}
	switch o := latest.(type) {
	case *corev1.PersistentVolumeClaim:
		event = framework.Event{Kinds: framework.PersistentVolumeClaims, Claim: o}
	case *storagev1.VolumeAttachment:
		event.Kinds = framework.Objects
		event.Resource = volumes.VolumeAttachments
	}
	s.Storage.Changed(latest)
	s.changes.Object(event)
}

// eachObject passes the objects of any kind to one function.
func eachObject(change func(old, now any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { change(nil, o) },
		UpdateFunc: change,
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			change(o, nil)
		},
	}
}

// watchPluginResources watches the resources that plugins registered with framework.Objects. The sync of custom
// resources is not waited for, since their definitions may not exist yet.
func (s *Source) watchPluginResources(groups bool) ([]cache.DoneChecker, error) {
	seen := map[schema.GroupVersionResource]bool{ // other functions watch these
		{}:                        true,
		policy.Resource:           true,
		plugins.PodGroups:         groups,
		volumes.VolumeAttachments: true,
	}
	synced, err := s.watchDevices(seen)
	if err != nil {
		return nil, err
	}
	for _, p := range s.profiles {
		for _, plugin := range p.Plugins {
			for _, hint := range plugin.Events {
				if seen[hint.Resource] {
					continue
				}
				seen[hint.Resource] = true
				inf, custom := s.informerOf(hint.Resource)
				if inf == nil {
					return nil, fmt.Errorf("plugin %s registers events of %s: there is no client for it", plugin.Name,
						hint.Resource)
				}
				reg, err := inf.AddEventHandler(eachObject(s.objectChanged(hint.Resource)))
				if err != nil {
					return nil, fmt.Errorf("watch %s: %w", hint.Resource.Resource, err)
				}
				if !custom && !s.absent(hint.Resource.GroupVersion(), func(r, _ string) bool {
					return r == hint.Resource.Resource
				}) {
					synced = append(synced, reg.HasSyncedChecker())
				}
			}
		}
	}
	return synced, nil
}

func (s *Source) informerOf(of schema.GroupVersionResource) (inf cache.SharedIndexInformer, custom bool) {
	if known, err := s.Informers.ForResource(of); err == nil {
		return known.Informer(), false
	}
	if s.client.Dynamic == nil {
		return nil, true
	}
	if s.custom == nil {
		s.custom = dynamicinformer.NewDynamicSharedInformerFactory(s.client.Dynamic, 0)
	}
	return s.custom.ForResource(of).Informer(), true
}

// objectChanged returns the function that reports changes of the objects of a resource.
func (s *Source) objectChanged(of schema.GroupVersionResource) func(old, now any) {
	return func(old, now any) {
		s.changes.Object(framework.Event{
			Kinds:     framework.Objects,
			Resource:  of,
			OldObject: old,
			NewObject: now,
		})
	}
}
