// SPDX-License-Identifier: Apache-2.0

package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"keelson/api/core/podspec"
	"keelson/api/kind"
	"keelson/api/resources"
)

// setDefaults fills in what holds for pods and not for templates.
func setDefaults(pod *corev1.Pod) {
	spec := &pod.Spec
	podspec.Default(spec)
	if *spec.TerminationGracePeriodSeconds < 0 { // of a pod only: templates keep what they have
		spec.TerminationGracePeriodSeconds = new(int64(1))
	}
	for i := range spec.Containers {
		requestsFromLimits(&spec.Containers[i].Resources)
	}
	for i := range spec.InitContainers {
		requestsFromLimits(&spec.InitContainers[i].Resources)
	}
	defaultResources(pod)
	kind.Fill(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if spec.HostNetwork {
		for _, list := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
			for i := range list {
				for j := range list[i].Ports {
					kind.FillZero(&list[i].Ports[j].HostPort, list[i].Ports[j].ContainerPort)
				}
			}
		}
	}
	syncPodIPs(&pod.Status)
}

// syncPodIPs keeps podIP equal to the first of podIPs; where they differ podIP wins, for kubelets that know only it.
func syncPodIPs(s *corev1.PodStatus) {
	switch {
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
}

func requestsFromLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = make(corev1.ResourceList, len(r.Limits))
	}
	for name, q := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			r.Requests[name] = q.DeepCopy()
		}
	}
}

// defaultResources completes pod-level resources from the containers' (KEP-2837): limits of huge pages first, then
// requests, from the containers where they say something and from the pod's limits where they do not.
func defaultResources(pod *corev1.Pod) {
	requirements := pod.Spec.Resources
	if requirements == nil || len(requirements.Limits)+len(requirements.Requests) == 0 {
		return
	}
	for name, q := range helper.AggregateContainerLimits(pod, helper.PodResourcesOptions{}) {
		_, asked := requirements.Requests[name]
		_, limited := requirements.Limits[name]
		if resources.IsHugePages(name) && !asked && !limited {
			if requirements.Limits == nil {
				requirements.Limits = corev1.ResourceList{}
			}
			requirements.Limits[name] = q.DeepCopy()
		}
	}
	if len(requirements.Limits) == 0 {
		return
	}
	ask := func(name corev1.ResourceName, q resource.Quantity) {
		if _, ok := requirements.Requests[name]; ok || !helper.IsSupportedPodLevelResource(name) {
			return
		}
		if requirements.Requests == nil {
			requirements.Requests = corev1.ResourceList{}
		}
		requirements.Requests[name] = q.DeepCopy()
	}
	for name, q := range helper.AggregateContainerRequests(pod, helper.PodResourcesOptions{}) {
		if resources.MayOvercommit(name) {
			ask(name, q)
		}
	}
	for name, q := range requirements.Limits {
		ask(name, q)
	}
}
