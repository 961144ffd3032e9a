// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"

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
// Where containers were added, removed or renamed it keeps nothing. Validation refuses that, and changed policies.
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
	now := pod.Spec.DeepCopy()
	now.Resources = checker.wholeResized(now.Resources, old.Spec.Resources)
	sameContainers := checker.sameOrder("containers", pod.Spec.Containers, old.Spec.Containers)
	if !checker.sameOrder("initContainers", pod.Spec.InitContainers, old.Spec.InitContainers) || !sameContainers {
		return checker.Errors()
	}
	checker.resized("initContainers", pod.Spec.InitContainers, old.Spec.InitContainers)
	checker.resized("containers", pod.Spec.Containers, old.Spec.Containers)
	checker.onlyCPUMemory(now, &old.Spec)
	return checker.Errors()
}

// sameOrder reports whether the containers have the same names in the same order: only then they can be compared one by
// one.
func (c *checker) sameOrder(child string, now, old []corev1.Container) bool {
	found := c.Len()
	if len(now) != len(old) {
		c.Forbidden(child, child+" may not be added or removed on resize")
		return false
	}
	c.In(child)
	for i := range old {
		if now[i].Name != old[i].Name {
			c.Index(i)
			c.Forbidden("name", child+" may not be renamed or reordered on resize")
			c.Out()
		}
	}
	c.Out()
	return c.Len() == found
}

// wholeResized judges the resources of the pod as a whole, and returns them with those that may change as they were.
func (c *checker) wholeResized(now, old *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	set := func(r *corev1.ResourceRequirements) bool { return r != nil && len(r.Requests)+len(r.Limits) > 0 }
	if !set(now) && !set(old) {
		return now
	}
	if old != nil {
		if now == nil {
			c.Forbidden("resources", "pod-level resources cannot be removed")
			return old // no second error
		}
		c.In("resources")
		c.notRemoved(now, old, "pod-level resource")
		c.Out()
	} else {
		old = &corev1.ResourceRequirements{}
	}
	now.Limits = withOldCPUMemory(now.Limits, old.Limits)
	now.Requests = withOldCPUMemory(now.Requests, old.Requests)
	if !equality.Semantic.DeepEqual(*now, *old) {
		c.Forbidden("", "only cpu and memory resources are mutable at pod-level")
	}
	return now
}

// nodeResizes reports whether the kubelet publishes resources, which it does when it can resize.
func nodeResizes(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if s := &p.Status.ContainerStatuses[i]; s.State.Running != nil {
			return s.Resources != nil
		}
	}
	return true
}

func (c *checker) resized(child string, now, old []corev1.Container) {
	c.In(child)
	for i := range old {
		c.Index(i)
		c.In("resources")
		c.notRemoved(&now[i].Resources, &old[i].Resources, "resource")
		c.Out()
		c.Out()
	}
	c.Out()
}

func (c *checker) notRemoved(now, old *corev1.ResourceRequirements, what string) {
	removed := func(now, old corev1.ResourceList) bool {
		for n := range old {
			if _, ok := now[n]; !ok {
				return true
			}
		}
		return false
	}
	if removed(now.Requests, old.Requests) {
		c.Forbidden("requests", what+" requests cannot be removed")
	}
	if removed(now.Limits, old.Limits) {
		c.Forbidden("limits", what+" limits cannot be removed")
	}
}

// onlyCPUMemory puts back what may change in now, and requires the rest to be equal.
func (c *checker) onlyCPUMemory(now, old *corev1.PodSpec) {
	const fixed = "only cpu and memory resources are mutable"
	for i := range now.Containers {
		putBack(&now.Containers[i], &old.Containers[i])
		if !equality.Semantic.DeepEqual(now.Containers[i], old.Containers[i]) {
			c.Forbidden("", fixed)
		}
	}
	c.In("initContainers")
	for i := range now.InitContainers {
		is := &now.InitContainers[i]
		c.Index(i)
		changed := !equality.Semantic.DeepEqual(*is, old.InitContainers[i])
		if putBack(is, &old.InitContainers[i]); !equality.Semantic.DeepEqual(*is, old.InitContainers[i]) {
			c.Forbidden("", "only cpu and memory resources for init or sidecar containers are mutable")
		}
		restarts := func(p corev1.ContainerResizePolicy) bool { return p.RestartPolicy == corev1.RestartContainer }
		if changed && !podspec.IsSidecar(is) && slices.ContainsFunc(is.ResizePolicy, restarts) {
			c.Forbidden("", "non-sidecar init containers with a resize policy of RestartContainer cannot be resized")
		}
		c.Out()
	}
	c.Out()
	if now.Resources = old.Resources; c.Len() == 0 && !equality.Semantic.DeepEqual(now, old) {
		c.Forbidden("", fixed)
	}
}

// putBack undoes what a resize may do. The policies of a resize are not part of that.
func putBack(is, was *corev1.Container) {
	is.Resources = corev1.ResourceRequirements{
		Limits:   withOldCPUMemory(is.Resources.Limits, was.Resources.Limits),
		Requests: withOldCPUMemory(is.Resources.Requests, was.Resources.Requests),
	}
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
