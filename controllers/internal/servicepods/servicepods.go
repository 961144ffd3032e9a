// SPDX-License-Identifier: Apache-2.0

// Package servicepods determines for the controllers of endpoints which Services a pod belongs to, and which changes of
// a pod matter. It writes nothing.
package servicepods

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	endpointutil "k8s.io/endpointslice/util"

	"keelson/api/core/pod"
	servicekind "keelson/api/core/service"
	"keelson/controllers/framework"
)

// bySelector indexes Services by the first label of their selector, so that the cost of a pod event depends on the
// pod's labels and not on the number of Services in its namespace.
const bySelector = "keelson.selector"

// Services maps pods to Services and Services to pods.
type Services struct {
	index cache.Indexer
	pods  corelisters.PodLister
}

// Of adds the index to the services' informer.
func Of(env *framework.Env) (*Services, error) {
	core := coreinformers.New(env.Shared.Scoped())
	services := core.Services().Informer()
	if err := framework.EnsureIndex(services, bySelector, indexBySelector); err != nil {
		return nil, err
	}
	return &Services{index: services.GetIndexer(), pods: core.Pods().Lister()}, nil
}

func indexBySelector(obj any) ([]string, error) {
	s, ok := obj.(*corev1.Service)
	if !ok || !Selects(s) {
		return nil, nil
	}
	first := slices.Min(slices.Collect(maps.Keys(s.Spec.Selector)))
	return []string{indexKey(s.Namespace, first, s.Spec.Selector[first])}, nil
}

func indexKey(namespace, label, value string) string { return namespace + "/" + label + "=" + value }

// Selects reports whether the Service has a selector for its endpoints. Users create the endpoints of others.
func Selects(s *corev1.Service) bool {
	return len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}

// Pods returns the pods that the Service selects, unordered, with the addresses that may be endpoints. A node may write
// any address into the status of its pods, and one that is not allowed would make the whole slice invalid: the Service
// would keep its old endpoints.
func (s *Services) Pods(service *corev1.Service) ([]*corev1.Pod, error) {
	pods, err := s.pods.Pods(service.Namespace).List(labels.Set(service.Spec.Selector).AsSelectorPreValidated())
	if err != nil {
		return nil, err
	}
	for i, p := range pods { // the list is ours, the pods are not
		if slices.ContainsFunc(p.Status.PodIPs, unusable) {
			pods[i] = withoutUnusable(p)
		}
	}
	return pods, nil
}

func unusable(ip corev1.PodIP) bool { return len(servicekind.ValidateEndpointIP(ip.IP, nil)) > 0 }

// withoutUnusable returns a copy of a pod that has only addresses that may be endpoints.
func withoutUnusable(p *corev1.Pod) *corev1.Pod {
	out := *p
	out.Status.PodIPs = slices.DeleteFunc(slices.Clone(p.Status.PodIPs), unusable)
	out.Status.PodIP = ""
	if len(out.Status.PodIPs) > 0 {
		out.Status.PodIP = out.Status.PodIPs[0].IP
	}
	return &out
}

// Watch calls add for each Service that a change of a pod affects; it may call it repeatedly.
func (s *Services) Watch(add func(framework.Key)) framework.Handlers[*corev1.Pod] {
	all := func(p *corev1.Pod) { s.EachService(p, add) }
	return framework.Handlers[*corev1.Pod]{
		Add:    all,
		Delete: all,
		Update: func(old, cur *corev1.Pod) {
			relabelled := !maps.Equal(old.Labels, cur.Labels)
			if !relabelled && !endpointChanged(old, cur) {
				return
			}
			all(cur)
			if relabelled {
				all(old)
			}
		},
	}
}

// EachService calls add for each service that selects p.
func (s *Services) EachService(p *corev1.Pod, add func(framework.Key)) {
	for label, value := range p.Labels {
		found, err := s.index.ByIndex(bySelector, indexKey(p.Namespace, label, value))
		if err != nil {
			return // Of created the index
		}
		for _, obj := range found {
			service, ok := obj.(*corev1.Service)
			if ok && labels.Set(service.Spec.Selector).AsSelectorPreValidated().Matches(labels.Set(p.Labels)) {
				add(framework.KeyOf(service))
			}
		}
	}
}

// endpointChanged reports whether a pod changed as an endpoint, except in its labels.
func endpointChanged(old, cur *corev1.Pod) bool {
	sameIPs := slices.EqualFunc(old.Status.PodIPs, cur.Status.PodIPs, func(a, b corev1.PodIP) bool {
		return a.IP == b.IP
	})
	return !sameIPs || old.Status.PodIP != cur.Status.PodIP ||
		endpointutil.ShouldPodBeInEndpoints(old, true) != endpointutil.ShouldPodBeInEndpoints(cur, true) ||
		pod.Ready(old) != pod.Ready(cur) || (old.DeletionTimestamp == nil) != (cur.DeletionTimestamp == nil) ||
		old.Spec.Hostname != cur.Spec.Hostname || old.Spec.Subdomain != cur.Spec.Subdomain || old.UID != cur.UID
}
