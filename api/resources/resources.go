// SPDX-License-Identifier: Apache-2.0

// Package resources adds up what pods ask for and sorts pods into quality of
// service classes. The server, the scheduler, the kubelet and admission use it.
// It reads objects and never changes them.
package resources

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

// Requests is what the pod's spec asks for: the containers together, or an init container with the sidecars started
// before it where that is more, or the pod-level requests where set; plus overhead. The caller owns the result.
func Requests(pod *corev1.Pod) corev1.ResourceList {
	return helper.PodRequests(pod, helper.PodResourcesOptions{})
}

// Reserved is what a node must set aside for the pod: like Requests, but during an in-place resize the larger of what
// is asked for and what the kubelet has allocated or applied. The scheduler counts this.
func Reserved(pod *corev1.Pod) corev1.ResourceList {
	return helper.PodRequests(pod, helper.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
}

// Limits is what the pod may use, counted as Requests does; a resource is absent where a container has no limit for
// any resource of that name and the pod has none either.
func Limits(pod *corev1.Pod) corev1.ResourceList {
	return helper.PodLimits(pod, helper.PodResourcesOptions{})
}

// QOS is the pod's class as the server sets it at creation: Guaranteed when every container (or the pod as a whole)
// has equal requests and limits of cpu and memory, BestEffort when nothing is asked for, else Burstable. Resources of
// the pod that name none do not count.
func QOS(pod *corev1.Pod) corev1.PodQOSClass {
	var requests, limits sums
	guaranteed := true
	count := func(r *corev1.ResourceRequirements) {
		requests.add(r.Requests)
		guaranteed = limits.add(r.Limits) && guaranteed
	}
	if r := pod.Spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		requests.add(r.Requests)
		if len(r.Limits) > 0 {
			guaranteed = limits.add(r.Limits)
		}
	} else {
		for i := range pod.Spec.Containers {
			count(&pod.Spec.Containers[i].Resources)
		}
		for i := range pod.Spec.InitContainers {
			count(&pod.Spec.InitContainers[i].Resources)
		}
	}
	switch {
	case requests.empty() && limits.empty():
		return corev1.PodQOSBestEffort
	case guaranteed && requests.equal(&limits):
		return corev1.PodQOSGuaranteed
	default:
		return corev1.PodQOSBurstable
	}
}

// sums adds up the two resources that decide the class.
type sums struct{ cpu, memory resource.Quantity }

// add reports whether list has both resources.
func (s *sums) add(list corev1.ResourceList) bool {
	cpu := list[corev1.ResourceCPU]
	memory := list[corev1.ResourceMemory]
	if cpu.Sign() > 0 {
		s.cpu.Add(cpu)
	}
	if memory.Sign() > 0 {
		s.memory.Add(memory)
	}
	return cpu.Sign() > 0 && memory.Sign() > 0
}

func (s *sums) empty() bool { return s.cpu.IsZero() && s.memory.IsZero() }

func (s *sums) equal(o *sums) bool { return s.cpu.Cmp(o.cpu) == 0 && s.memory.Cmp(o.memory) == 0 }
