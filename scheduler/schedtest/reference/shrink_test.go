// SPDX-License-Identifier: Apache-2.0

package reference_test

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// shrink takes away what a failure does not need: steps, then parts of the objects in them.
func shrink(steps []step, seed uint64, why error) ([]step, error) {
	fails := func(s []step) bool {
		_, err := run(s, seed, whole)
		if err != nil {
			why = err
		}
		return err != nil
	}
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(steps); {
			if less := slices.Delete(slices.Clone(steps), at, at+size); fails(less) {
				steps = less
			} else {
				at += size
			}
		}
	}
	for i := range steps {
		for _, simpler := range simplifications(steps[i]) {
			try := slices.Clone(steps)
			if try[i] = simpler(try[i]); fails(try) {
				steps = try
			}
		}
	}
	_, err := run(steps, seed, whole)
	return steps, err
}

func simplifications(s step) []func(step) step {
	var all []func(step) step
	if s.Node != nil {
		for _, change := range []func(*corev1.Node){
			func(n *corev1.Node) { n.Status.Images = nil },
			func(n *corev1.Node) { n.Spec.Taints = nil },
			func(n *corev1.Node) { delete(n.Labels, "disk") },
			func(n *corev1.Node) { delete(n.Labels, "cores") },
			func(n *corev1.Node) { delete(n.Labels, corev1.LabelTopologyZone) },
			func(n *corev1.Node) { n.Status.Allocatable = list("cpu", "4", "memory", "32Gi", "pods", "110") },
		} {
			all = append(all, func(s step) step {
				s.Node = s.Node.DeepCopy()
				change(s.Node)
				return s
			})
		}
	}
	for _, change := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.Status = corev1.PodStatus{} },
		func(p *corev1.Pod) { p.Spec.Affinity = nil },
		func(p *corev1.Pod) { p.Spec.Affinity.NodeAffinity = nil },
		func(p *corev1.Pod) { p.Spec.Affinity.PodAffinity = nil },
		func(p *corev1.Pod) { p.Spec.Affinity.PodAntiAffinity = nil },
		func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = nil },
		func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = p.Spec.TopologySpreadConstraints[:1] },
		func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = p.Spec.TopologySpreadConstraints[1:] },
		func(p *corev1.Pod) { p.Spec.Tolerations = nil },
		func(p *corev1.Pod) { p.Spec.NodeSelector = nil },
		func(p *corev1.Pod) { p.Spec.InitContainers = nil },
		func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] },
		func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil },
		func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil },
		func(p *corev1.Pod) { p.Spec.Containers[0].Image = "none" },
		func(p *corev1.Pod) {
			p.Spec.Overhead = nil
			p.Spec.Resources = nil
		},
		func(p *corev1.Pod) { p.Spec.Volumes = nil },
		func(p *corev1.Pod) { p.Spec.Volumes = p.Spec.Volumes[:1] },
	} {
		for _, of := range []func(*step) **corev1.Pod{func(s *step) **corev1.Pod {
			return &s.Bound
		}, func(s *step) **corev1.Pod { return &s.Place }} {
			if *of(&s) == nil {
				continue
			}
			all = append(all, func(s step) (out step) {
				p := of(&s)
				*p = (*p).DeepCopy()
				defer func() {
					_ = recover()
					out = s
				}() // there is nothing to take away
				change(*p)
				return s
			})
		}
	}
	return all
}
