// SPDX-License-Identifier: Apache-2.0

package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/meta"
	"keelson/api/resources"
)

// keepRest puts back all that a subresource does not own. The spec's lists stay shared with old: replace, do not
// change.
func keepRest(p, old *corev1.Pod) {
	p.Spec = old.Spec
	p.Status = old.Status
	meta.KeepForStatus(p, old)
}

// prepareResize keeps everything but the resources and resize policies of containers, and the pod's own resources.
// Where containers were added, removed or renamed it keeps nothing, for validation to refuse.
func prepareResize(pod, old *corev1.Pod) {
	if len(pod.Spec.Containers) == len(old.Spec.Containers) && len(pod.Spec.InitContainers) == len(
		old.Spec.InitContainers) {
		containers := onlyResources(pod.Spec.Containers, old.Spec.Containers)
		initContainers := onlyResources(pod.Spec.InitContainers, old.Spec.InitContainers)
		whole := pod.Spec.Resources
		keepRest(pod, old)
		pod.Spec.Containers = containers
		pod.Spec.InitContainers = initContainers
		pod.Spec.Resources = whole
	}
	bumpGeneration(pod, old)
}

func onlyResources(now, old []corev1.Container) []corev1.Container {
	if len(now) == 0 {
		return now
	}
	merged := make([]corev1.Container, len(old))
	for i := range old {
		if now[i].Name != old[i].Name {
			return now
		}
		merged[i] = old[i]
		merged[i].Resources = now[i].Resources
		merged[i].ResizePolicy = now[i].ResizePolicy
	}
	return merged
}

// validateResize lets cpu and memory change within the pod's quality of service class (KEP-1287).
func validateResize(pod, old *corev1.Pod) field.ErrorList {
	forbidden := func(why string) field.ErrorList { return field.ErrorList{field.Forbidden(field.NewPath(""), why)} }
	switch {
	case old.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return forbidden("static pods cannot be resized")
	case old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows:
		return forbidden("windows pods cannot be resized")
	}
	checker := newChecker(pod)
	checker.Pod(pod)
	checker.In("spec")
	if len(pod.Spec.Containers) != len(old.Spec.Containers) ||
		len(pod.Spec.InitContainers) != len(old.Spec.InitContainers) {
		checker.Forbidden("", "containers may not be added or removed on resize")
		return checker.Errors()
	}
	class := old.Status.QOSClass
	if class == "" {
		class = resources.QOS(old)
	}
	if class != resources.QOS(pod) {
		checker.Invalid("", pod.Status.QOSClass, "Pod QOS Class may not change as a result of resizing")
	}
	if !nodeResizes(old) {
		checker.Forbidden("", "Pod running on node without support for resize")
	}
	checker.resized("initContainers", pod.Spec.InitContainers, old.Spec.InitContainers, podspec.IsSidecar)
	checker.resized("containers", pod.Spec.Containers, old.Spec.Containers, func(*corev1.Container) bool {
		return true
	})
	if now, was := pod.Spec.Resources, old.Spec.Resources; now != nil && was != nil {
		checker.In("resources")
		checker.notRemoved(now, was)
		checker.Out()
	}
	checker.onlyCPUMemory(pod, old)
	return checker.Errors()
}

// nodeResizes tells whether the kubelet reports resources, which it does when it can resize.
func nodeResizes(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if s := &p.Status.ContainerStatuses[i]; s.State.Running != nil {
			return s.Resources != nil
		}
	}
	return true
}

func (c *checker) resized(child string, now, old []corev1.Container, counts func(*corev1.Container) bool) {
	c.In(child)
	for i := range old {
		if counts(&old[i]) {
			c.Index(i)
			c.In("resources")
			c.notRemoved(&now[i].Resources, &old[i].Resources)
			c.Out()
			c.Out()
		}
	}
	c.Out()
}

func (c *checker) notRemoved(now, old *corev1.ResourceRequirements) {
	removed := func(now, old corev1.ResourceList) bool {
		for n := range old {
			if _, ok := now[n]; !ok {
				return true
			}
		}
		return false
	}
	if removed(now.Requests, old.Requests) {
		c.Forbidden("requests", "resource requests cannot be removed")
	}
	if removed(now.Limits, old.Limits) {
		c.Forbidden("limits", "resource limits cannot be removed")
	}
}

// onlyCPUMemory puts back what may change and wants the rest to be as it was.
func (c *checker) onlyCPUMemory(p, old *corev1.Pod) {
	now := p.Spec.DeepCopy()
	for i := range now.Containers {
		if putBack(&now.Containers[i], &old.Spec.Containers[i]); !equality.Semantic.DeepEqual(now.Containers[i],
			old.Spec.Containers[i]) {
			c.Forbidden("", "only cpu and memory resources are mutable")
		}
	}
	for i := range now.InitContainers {
		is := &now.InitContainers[i]
		was := &old.Spec.InitContainers[i]
		why := "resources for non-sidecar init containers are immutable"
		if podspec.IsSidecar(is) {
			putBack(is, was)
			why = "only cpu and memory resources for sidecar containers are mutable"
		}
		if !equality.Semantic.DeepEqual(*is, *was) {
			c.Forbidden("", why)
		}
	}
	if now.Resources != nil && old.Spec.Resources != nil {
		now.Resources.Limits = withOldCPUMemory(now.Resources.Limits, old.Spec.Resources.Limits)
		now.Resources.Requests = withOldCPUMemory(now.Resources.Requests, old.Spec.Resources.Requests)
	}
	if c.Len() == 0 && !equality.Semantic.DeepEqual(*now, old.Spec) {
		c.Forbidden("", "only cpu and memory resources are mutable")
	}
}

func putBack(is, was *corev1.Container) {
	is.ResizePolicy = was.ResizePolicy
	is.Resources.Limits = withOldCPUMemory(is.Resources.Limits, was.Resources.Limits)
	is.Resources.Requests = withOldCPUMemory(is.Resources.Requests, was.Resources.Requests)
}

func withOldCPUMemory(now, old corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for n, q := range now {
		if n != corev1.ResourceCPU && n != corev1.ResourceMemory {
			out[n] = q
		}
	}
	for _, n := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := old[n]; ok {
			out[n] = q
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
