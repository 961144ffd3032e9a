// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

type list = corev1.ResourceList

func plus(a, b list) list {
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

func most(a, b list) list {
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

// missing are what scores take a container to ask for that asks for none.
var missing = list{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("200Mi")}

// asks is what a pod asks for: its containers together with its sidecars, or what it takes to start if that is more; instead of that
// what the pod as a whole asks for; and the overhead. A pod that is being resized holds the most of what it wants, was promised and has.
// Scores fill in what containers do not say.
func asks(p *corev1.Pod, fill bool) list {
	infeasible := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible
	})
	wanted := func(c *corev1.Container, _ *corev1.ContainerStatus) list { return c.Resources.Requests }
	promised := func(c *corev1.Container, s *corev1.ContainerStatus) list {
		switch {
		case s != nil && s.AllocatedResources != nil:
			return s.AllocatedResources
		case infeasible:
			return nil
		}
		return c.Resources.Requests
	}
	has := func(c *corev1.Container, s *corev1.ContainerStatus) list {
		if s != nil && s.Resources != nil && s.Resources.Requests != nil {
			return s.Resources.Requests
		}
		return promised(c, s)
	}
	own := podLevel(p)
	total := most(running(p, promised, fill, own), running(p, has, fill, own))
	if !infeasible {
		total = most(total, running(p, wanted, fill, own))
	}
	for name, q := range own {
		total[name] = q
	}
	return plus(total, p.Spec.Overhead)
}

func podLevel(p *corev1.Pod) list {
	if p.Spec.Resources == nil {
		return nil
	}
	return p.Spec.Resources.Requests
}

// running is what a pod's containers take at most at one time.
func running(p *corev1.Pod, of func(*corev1.Container, *corev1.ContainerStatus) list, fill bool, own list) list {
	one := func(c *corev1.Container) list {
		r := of(c, statusOf(p, c.Name)).DeepCopy()
		if r == nil {
			r = list{}
		}
		for name, q := range missing {
			// Where the pod as a whole asks for something, only what nobody says is filled in.
			if _, said := r[name]; fill && !said && (len(own) == 0 || nobodyAsks(p, name)) {
				r[name] = q
			}
		}
		return r
	}
	sidecars, starting, all := list{}, list{}, list{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars = plus(sidecars, one(c))
			starting = most(starting, sidecars)
		} else {
			starting = most(starting, plus(sidecars, one(c)))
		}
	}
	for i := range p.Spec.Containers {
		all = plus(all, one(&p.Spec.Containers[i]))
	}
	return most(plus(all, sidecars), starting)
}

func nobodyAsks(p *corev1.Pod, name corev1.ResourceName) bool {
	_, asked := asks(p, false)[name]
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

// taken is what the pods of a node ask for together.
func (c *Cluster) taken(n *corev1.Node, fill bool) list {
	sum := list{}
	for _, p := range c.on(n) {
		sum = plus(sum, asks(p, fill))
	}
	return sum
}

// isFull: the pods on the node leave less of something than the pod asks for. Asking for nothing fits anywhere.
func (c *Cluster) isFull(p *corev1.Pod, n *corev1.Node) bool {
	pods := n.Status.Allocatable[corev1.ResourcePods]
	if int64(len(c.on(n)))+1 > pods.Value() {
		return true
	}
	taken := c.taken(n, false)
	for name, q := range asks(p, false) {
		if q.IsZero() {
			continue
		}
		offers := n.Status.Allocatable[name]
		q.Add(taken[name])
		if q.Cmp(offers) > 0 {
			return true
		}
	}
	return false
}
