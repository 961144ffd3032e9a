// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/client"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/policy"
	"keelson/scheduler/state"
)

// watch starts the informers and waits until the cluster's state is in the cache; wait blocks until they have ended,
// after ctx is done.
func (s *Scheduler) watch(ctx context.Context) (wait func(), err error) {
	rest := s.informers
	pods := s.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
		).String()
	}})
	sources := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{rest.Core().V1().Namespaces().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    s.setNamespace,
			UpdateFunc: func(_, o any) { s.setNamespace(o) },
			DeleteFunc: s.dropNamespace,
		}},
		{rest.Core().V1().Nodes().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.setNode(nil, o) },
			UpdateFunc: s.setNode,
			DeleteFunc: s.dropNode,
		}},
		{coreinformers.New(pods.Scoped()).Pods().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.setPod(nil, o) },
			UpdateFunc: s.setPod,
			DeleteFunc: s.dropPod,
		}},
	}
	synced := append(s.defaultSelector.setInformers(rest), s.watchPDBs(rest)...)
	for _, more := range []func(informers.SharedInformerFactory) ([]cache.DoneChecker, error){
		s.watchStorage, s.watchGroups, s.watchPluginResources,
	} {
		done, err := more(rest)
		if err != nil {
			return nil, err
		}
		synced = append(synced, done...)
	}
	for _, src := range sources {
		reg, err := src.informer.AddEventHandler(src.handler)
		if err != nil {
			return nil, fmt.Errorf("watch the cluster: %w", err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	rest.Start(ctx.Done())
	pods.Start(ctx.Done())
	wait = func() {
		rest.Shutdown()
		pods.Shutdown()
	}
	if s.custom != nil {
		s.custom.Start(ctx.Done())
		wait = func() {
			rest.Shutdown()
			pods.Shutdown()
			s.custom.Shutdown()
		}
	}
	policies, err := s.watchPolicies(ctx)
	if err != nil {
		return nil, err
	}
	others := wait
	wait = func() {
		others()
		policies()
	}
	if err := s.waitForSync(ctx, rest, synced); err != nil {
		wait()
		return nil, err
	}
	return wait, nil
}

// watchStorage watches claims, volumes, and the other storage objects that the volume plugins use.
func (s *Scheduler) watchStorage(f informers.SharedInformerFactory) ([]cache.DoneChecker, error) {
	all, err := s.storage.Watch(f)
	if err != nil {
		return nil, err
	}
	var synced []cache.DoneChecker
	for _, inf := range all {
		reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.storageEvent(nil, o) },
			UpdateFunc: s.storageEvent,
			DeleteFunc: func(o any) {
				if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = gone.Obj
				}
				s.storageEvent(o, nil)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch storage: %w", err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	return synced, nil
}

// storageEvent reports an event about a storage object to the queue. old is nil for a new object, now for a deleted
// one.
func (s *Scheduler) storageEvent(old, now any) {
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
		event.Resource = plugins.VolumeAttachments
	}
	s.storage.Changed(latest)
	s.queue.OnEvent(event)
}

// watchPluginResources watches the resources that plugins registered with framework.Objects. The sync of custom
// resources is not waited for, since their definitions may not exist yet.
func (s *Scheduler) watchPluginResources(factory informers.SharedInformerFactory) ([]cache.DoneChecker, error) {
	seen := map[schema.GroupVersionResource]bool{ // other functions watch these
		{}:                        true,
		policy.Resource:           true,
		plugins.PodGroups:         s.groups != nil,
		plugins.VolumeAttachments: true,
	}
	synced, err := s.watchDevices(factory, seen)
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
				inf, custom := s.informerOf(factory, hint.Resource)
				if inf == nil {
					return nil, fmt.Errorf("plugin %s registers events of %s: there is no client for it", plugin.Name,
						hint.Resource)
				}
				reg, err := inf.AddEventHandler(s.resourceEventHandler(hint.Resource))
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

func (s *Scheduler) informerOf(
	f informers.SharedInformerFactory, of schema.GroupVersionResource,
) (inf cache.SharedIndexInformer, custom bool) {
	if known, err := f.ForResource(of); err == nil {
		return known.Informer(), false
	}
	if s.cfg.Client.Dynamic == nil {
		return nil, true
	}
	if s.custom == nil {
		s.custom = dynamicinformer.NewDynamicSharedInformerFactory(s.cfg.Client.Dynamic, 0)
	}
	return s.custom.ForResource(of).Informer(), true
}

// resourceEventHandler reports events about the objects of a resource to the queue.
func (s *Scheduler) resourceEventHandler(of schema.GroupVersionResource) cache.ResourceEventHandler {
	onEvent := func(old, now any) {
		s.queue.OnEvent(framework.Event{
			Kinds:     framework.Objects,
			Resource:  of,
			OldObject: old,
			NewObject: now,
		})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { onEvent(nil, o) },
		UpdateFunc: onEvent,
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			onEvent(o, nil)
		},
	}
}

func (s *Scheduler) setNamespace(o any) {
	if ns, ok := client.Delivered[*corev1.Namespace](o); ok {
		s.cache.SetNamespace(ns.Name, ns.Labels)
		s.queue.OnEvent(framework.Event{Kinds: framework.NamespaceLabels})
	}
}

func (s *Scheduler) dropNamespace(o any) {
	if ns, ok := client.Delivered[*corev1.Namespace](o); ok {
		s.cache.RemoveNamespace(ns.Name)
	}
}

func (s *Scheduler) setNode(before, after any) {
	node, ok := client.Delivered[*corev1.Node](after)
	if !ok {
		return
	}
	s.cache.SetNode(node)
	e := framework.Event{Kinds: framework.NodeAdd, NewNode: node}
	if old, ok := client.Delivered[*corev1.Node](before); ok {
		e.OldNode = old
		e.Kinds = nodeChange(old, node)
	}
	s.queue.OnEvent(e)
}

// nodeChange returns the event kinds of an update of a node.
func nodeChange(old, node *corev1.Node) framework.EventKinds {
	var eventKinds framework.EventKinds
	if !reflect.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) {
		eventKinds |= framework.NodeAllocatable
	}
	if !maps.Equal(old.Labels, node.Labels) {
		eventKinds |= framework.NodeLabels
	}
	if old.Spec.Unschedulable != node.Spec.Unschedulable || !reflect.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		eventKinds |= framework.NodeTaints
	}
	if !slices.Equal(old.Status.DeclaredFeatures, node.Status.DeclaredFeatures) {
		eventKinds |= framework.NodeDeclaredFeatures
	}
	if otherNodeChange(old, node) {
		eventKinds |= framework.NodeOther
	}
	return eventKinds
}

// otherNodeChange reports whether anything else of a node changed, except the timestamps of its heartbeats.
func otherNodeChange(old, node *corev1.Node) bool {
	if !maps.Equal(old.Annotations, node.Annotations) || !reflect.DeepEqual(&old.Spec, &node.Spec) {
		return true
	}
	nodeStatus := old.Status
	b := node.Status
	if !slices.EqualFunc(nodeStatus.Conditions, b.Conditions, func(x, y corev1.NodeCondition) bool {
		x.LastHeartbeatTime = metav1.Time{}
		y.LastHeartbeatTime = metav1.Time{}
		return reflect.DeepEqual(x, y)
	}) {
		return true
	}
	nodeStatus.Conditions = nil
	b.Conditions = nil
	return !reflect.DeepEqual(&nodeStatus, &b)
}

func (s *Scheduler) dropNode(o any) {
	if node, ok := client.Delivered[*corev1.Node](o); ok {
		s.cache.RemoveNode(node.Name)
	}
}

func (s *Scheduler) setPod(before, after any) {
	pod, ok := client.Delivered[*corev1.Pod](after)
	if !ok {
		return
	}
	old, _ := client.Delivered[*corev1.Pod](before)
	if old != nil && old.UID != pod.UID { // deleted and created again between two events
		s.dropPod(old)
		old = nil
	}
	switch {
	case podkind.Terminal(pod):
		s.dropPod(pod)
	case pod.Spec.NodeName != "":
		s.setBoundPod(old, pod)
	case s.profile(pod) != nil && pod.DeletionTimestamp == nil:
		s.groups.AddPod(pod)
		if _, assumed := s.cache.Where(pod.UID); assumed {
			if s.queue.Has(pod.UID) { // its binding cycle is running, and may fail
				s.queue.Set(pod)
			}
			return
		}
		if n := pod.Status.NominatedNodeName; n != "" && s.cache.Nominated(pod.UID) == "" {
			s.cache.Nominate(state.NewPodInfo(pod), n)
		}
		s.queue.Set(pod)
	default:
		s.waitingBindings.cancel(pod.UID)
		s.queue.Delete(pod.UID)
		s.clearNomination(pod)
		s.groups.RemovePod(pod)
	}
}

func (s *Scheduler) setBoundPod(old, pod *corev1.Pod) {
	s.cache.SetPod(pod)
	s.groups.AddPod(pod)
	if old == nil || old.Spec.NodeName == "" {
		s.queue.Delete(pod.UID)
		s.clearNomination(pod)
		s.queue.OnEvent(framework.Event{Kinds: framework.AssignedPodAdd, NewPod: pod})
		return
	}
	e := framework.Event{Kinds: podChange(old, pod), OldPod: old, NewPod: pod}
	if e.Kinds&framework.AssignedPodScaleDown != 0 {
		e.NodeView = s.cache.NodeView(pod.Spec.NodeName)
	}
	s.queue.OnEvent(e)
}

// podChange returns the event kinds of an update of a bound pod.
func podChange(old, pod *corev1.Pod) framework.EventKinds {
	var k framework.EventKinds
	if !maps.Equal(old.Labels, pod.Labels) || (old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) {
		k |= framework.AssignedPodLabels
	}
	if old.Generation != pod.Generation || !reflect.DeepEqual(old.Spec.Containers, pod.Spec.Containers) ||
		!state.SameAllocation(old, pod) {
		k |= framework.AssignedPodScaleDown
	}
	return k
}

func (s *Scheduler) dropPod(o any) {
	pod, ok := client.Delivered[*corev1.Pod](o)
	if !ok {
		return
	}
	s.waitingBindings.cancel(pod.UID)
	s.queue.Delete(pod.UID)
	s.clearNomination(pod)
	node, _ := s.cache.Where(pod.UID)
	s.cache.RemovePod(pod.UID)
	s.groups.RemovePod(pod)
	if node = cmp.Or(node, pod.Spec.NodeName); node != "" {
		s.resourcesFreed(pod, node)
	}
}

// known reports whether a pod may still exist.
func (s *Scheduler) known(pod *state.PodInfo) bool { return s.queue.Has(pod.Pod.UID) }

// watchPDBs watches disruption budgets if the server has them.
func (s *Scheduler) watchPDBs(f informers.SharedInformerFactory) []cache.DoneChecker {
	if !s.serves(policyv1.SchemeGroupVersion, "poddisruptionbudgets") {
		return nil
	}
	b := f.Policy().V1().PodDisruptionBudgets()
	s.pdbLister = b.Lister()
	return []cache.DoneChecker{b.Informer().HasSyncedChecker()}
}

func (s *Scheduler) listPDBs() []*policyv1.PodDisruptionBudget {
	if s.pdbLister == nil {
		return nil
	}
	list, err := s.pdbLister.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache does not fail
	}
	return list
}
