// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

type list = corev1.ResourceList

func add(a, b list) list {
	sum := a.DeepCopy()
	if sum == nil {
		sum = list{}
	}
	for name, q := range b {
		s := sum[name]
		s.Add(q)
		sum[name] = s
	}
	return sum
}

func maximum(a, b list) list {
	out := a.DeepCopy()
	if out == nil {
		out = list{}
	}
	for name, q := range b {
		if s, ok := out[name]; !ok || s.Cmp(q) < 0 {
			out[name] = q
		}
	}
	return out
}

// defaultRequests are the requests that scores assume for a container without requests.
var defaultRequests = list{
	corev1.ResourceCPU:    resource.MustParse("100m"),
	corev1.ResourceMemory: resource.MustParse("200Mi"),
}

// podRequests returns the requests of a pod: the sum of its containers and sidecars, or what its init containers need
// if that is more; pod-level requests replace that; the overhead is added. For a pod that is being resized it is the
// maximum of the desired, allocated and actual requests. Scores use it with defaults.
func podRequests(pod *corev1.Pod, withDefaults bool) list {
	infeasible := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible
	})
	desired := func(c *corev1.Container, _ *corev1.ContainerStatus) list { return c.Resources.Requests }
	allocated := func(c *corev1.Container, s *corev1.ContainerStatus) list {
		switch {
		case s != nil && s.AllocatedResources != nil:
			return s.AllocatedResources
		case infeasible:
			return nil
		}
		return c.Resources.Requests
	}
	actual := func(c *corev1.Container, s *corev1.ContainerStatus) list {
		if s != nil && s.Resources != nil && s.Resources.Requests != nil {
			return s.Resources.Requests
		}
		return allocated(c, s)
	}
	own := podLevelRequests(pod)
	total := maximum(containerRequests(pod, allocated, withDefaults, own),
		containerRequests(pod, actual, withDefaults, own))
	if !infeasible {
		total = maximum(total, containerRequests(pod, desired, withDefaults, own))
	}
	maps.Copy(total, own)
	return add(total, pod.Spec.Overhead)
}

func podLevelRequests(p *corev1.Pod) list {
	if p.Spec.Resources == nil {
		return nil
	}
	return p.Spec.Resources.Requests
}

// containerRequests returns the maximum of what the containers of a pod need at one time.
func containerRequests(pod *corev1.Pod, requestsOf func(
	*corev1.Container, *corev1.ContainerStatus,
) list, withDefaults bool, podLevel list,
) list {
	one := func(c *corev1.Container) list {
		r := requestsOf(c, statusOf(pod, c.Name)).DeepCopy()
		if r == nil {
			r = list{}
		}
		for name, q := range defaultRequests {
			// With pod-level requests, defaults are only for resources that no container and not the pod requests.
			if _, given := r[name]; withDefaults && !given && (len(podLevel) == 0 || notRequested(pod, name)) {
				r[name] = q
			}
		}
		return r
	}
	sidecars := list{}
	initMax := list{}
	containers := list{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars = add(sidecars, one(c))
			initMax = maximum(initMax, sidecars)
		} else {
			initMax = maximum(initMax, add(sidecars, one(c)))
		}
	}
	for i := range pod.Spec.Containers {
		containers = add(containers, one(&pod.Spec.Containers[i]))
	}
	return maximum(add(containers, sidecars), initMax)
}

func notRequested(p *corev1.Pod, name corev1.ResourceName) bool {
	_, asked := podRequests(p, false)[name]
	return !asked
}

func statusOf(p *corev1.Pod, container string) *corev1.ContainerStatus {
	for _, all := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range all {
			if all[i].Name == container {
				return &all[i]
			}
		}
	}
	return nil
}

// requestedOn returns the sum of the requests of the pods on a node.
func (c *Cluster) requestedOn(n *corev1.Node, withDefaults bool) list {
	sum := list{}
	for _, p := range c.podsOn(n) {
		sum = add(sum, podRequests(p, withDefaults))
	}
	return sum
}

// lacksResources: the node has less of a resource free than the pod requests. A request of 0 fits on any node.
func (c *Cluster) lacksResources(p *corev1.Pod, n *corev1.Node) bool {
	pods := n.Status.Allocatable[corev1.ResourcePods]
	if int64(len(c.podsOn(n)))+1 > pods.Value() {
		return true
	}
	requested := c.requestedOn(n, false)
	for name, q := range podRequests(p, false) {
		if q.IsZero() {
			continue
		}
		allocatable := n.Status.Allocatable[name]
		q.Add(requested[name])
		if q.Cmp(allocatable) > 0 {
			return true
		}
	}
	return false
}
