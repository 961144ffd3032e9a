// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// normalize scales the scores so that the largest becomes 100. With reverse the smallest score becomes the best.
func normalize(scores []int64, reverse bool) []int64 {
	most := slices.Max(append([]int64{0}, scores...))
	for i := range scores {
		if most > 0 {
			scores[i] = 100 * scores[i] / most
		}
		if reverse {
			scores[i] = 100 - scores[i]
		}
	}
	return scores
}

func scoreTaints(_ *Cluster, p *corev1.Pod, fit []*corev1.Node) []int64 {
	scores := make([]int64, len(fit))
	for i, n := range fit {
		for _, t := range n.Spec.Taints {
			if t.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(p.Spec.Tolerations, t) {
				scores[i]++
			}
		}
	}
	return normalize(scores, true)
}

func scoreNodeAffinity(_ *Cluster, p *corev1.Pod, fit []*corev1.Node) []int64 {
	scores := make([]int64, len(fit))
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil {
		return scores
	}
	for i, n := range fit {
		for _, t := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			if matchesNodeTerm(&t.Preference, n) {
				scores[i] += int64(t.Weight)
			}
		}
	}
	return normalize(scores, false)
}

// cpuAndMemory returns what the node has, and what its pods request without and with this pod.
func (c *Cluster) cpuAndMemory(p *corev1.Pod, n *corev1.Node, withDefaults bool) (allocatable, before, after [2]int64) {
	requested := c.requestedOn(n, withDefaults)
	with := add(requested, podRequests(p, withDefaults))
	get := func(l list) [2]int64 { return [2]int64{l.Cpu().MilliValue(), l.Memory().Value()} }
	return get(n.Status.Allocatable), get(requested), get(with)
}

func (c *Cluster) scoreLeastAllocated(p *corev1.Pod, fit []*corev1.Node) []int64 {
	scores := make([]int64, len(fit))
	for i, n := range fit {
		allocatable, _, after := c.cpuAndMemory(p, n, true)
		var sum, weights int64
		for r := range allocatable {
			if allocatable[r] == 0 {
				continue
			}
			sum += max(allocatable[r]-after[r], 0) * 100 / allocatable[r]
			weights++
		}
		scores[i] = sum / max(weights, 1)
	}
	return scores
}

// scoreBalancedAllocation: how evenly cpu and memory are requested, compared with the node without this pod.
func (c *Cluster) scoreBalancedAllocation(pod *corev1.Pod, fit []*corev1.Node) []int64 {
	scores := make([]int64, len(fit))
	a := podRequests(pod, false)
	if a.Cpu().IsZero() && a.Memory().IsZero() {
		return scores
	}
	balance := func(taken, allocatable [2]int64) int64 {
		var parts []float64
		for r := range allocatable {
			if allocatable[r] > 0 {
				parts = append(parts, min(float64(taken[r])/float64(allocatable[r]), 1))
			}
		}
		deviation := 0.0
		if len(parts) == 2 {
			deviation = math.Abs((parts[0] - parts[1]) / 2)
		}
		return int64((1 - deviation) * 100)
	}
	for i, n := range fit {
		allocatable, before, after := c.cpuAndMemory(pod, n, false)
		scores[i] = 50 + (50+balance(after, allocatable)-balance(before, allocatable))/2
	}
	return scores
}

// scoreImages: the bytes of the pod's images that the node has, each by the part of the nodes that have it, between 23
// MiB and 1000 MiB a container.
func (c *Cluster) scoreImages(p *corev1.Pod, fit []*corev1.Node) []int64 {
	const mib = 1 << 20
	var images []string
	for _, k := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		images = append(images, k.Image)
	}
	for _, v := range p.Spec.Volumes {
		if v.Image != nil {
			images = append(images, v.Image.Reference)
		}
	}
	size := func(n *corev1.Node, image string) int64 {
		if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
			image += ":latest"
		}
		for _, i := range n.Status.Images {
			if slices.Contains(i.Names, image) {
				return i.SizeBytes
			}
		}
		return 0
	}
	scores := make([]int64, len(fit))
	for i, n := range fit {
		var sum int64
		for _, image := range images {
			have := 0
			for _, m := range c.Nodes {
				if size(m, image) > 0 {
					have++
				}
			}
			sum += int64(float64(size(n, image)) * (float64(have) / float64(len(c.Nodes))))
		}
		least := int64(23 * mib)
		most := int64(1000 * mib * len(images))
		scores[i] = 100 * (min(max(sum, least), most) - least) / (most - least)
	}
	return scores
}

// scoreSpread: how few matching pods are in the node's domains, by the ScheduleAnyway constraints; if the pod has no
// constraints, by the default constraints for the pods of a service or controller.
func (c *Cluster) scoreSpread(pod *corev1.Pod, fit []*corev1.Node) []int64 {
	scores := make([]int64, len(fit))
	soft := spreadConstraints(pod, corev1.ScheduleAnyway)
	own := len(pod.Spec.TopologySpreadConstraints) > 0
	if !own && c.DefaultSelector != nil {
		if selector := c.DefaultSelector(pod); selector != nil {
			soft = []corev1.TopologySpreadConstraint{
				{TopologyKey: corev1.LabelHostname, MaxSkew: 3, LabelSelector: selector},
				{TopologyKey: corev1.LabelTopologyZone, MaxSkew: 5, LabelSelector: selector},
			}
		}
	}
	if len(soft) == 0 {
		return scores
	}
	var counted []*corev1.Node
	for _, n := range fit {
		if !own || hasAllKeys(n, soft) {
			counted = append(counted, n)
		}
	}
	least := int64(math.MaxInt64)
	most := int64(0)
	for i, n := range fit {
		if !slices.Contains(counted, n) {
			continue
		}
		var sum float64
		for _, t := range soft {
			if _, ok := n.Labels[t.TopologyKey]; ok {
				sum += c.topologyScore(pod, &t, soft, own, counted, n)
			}
		}
		scores[i] = int64(math.Round(sum))
		least = min(least, scores[i])
		most = max(most, scores[i])
	}
	for i, n := range fit {
		switch {
		case !slices.Contains(counted, n):
			scores[i] = 0
		case most == 0:
			scores[i] = 100
		default:
			scores[i] = 100 * (most + least - scores[i]) / most
		}
	}
	return scores
}

// topologyScore is the number of matching pods in the node's domain, weighted by the number of domains (nodes without
// the label are one more domain).
func (c *Cluster) topologyScore(
	pod *corev1.Pod, constraint *corev1.TopologySpreadConstraint, soft []corev1.TopologySpreadConstraint, own bool,
	counted []*corev1.Node, node *corev1.Node,
) float64 {
	selector := spreadSelector(pod, constraint)
	var pods int64
	domains := len(counted)
	if constraint.TopologyKey == corev1.LabelHostname {
		pods = c.countMatching(pod, selector, node)
	} else {
		seen := map[string]bool{}
		for _, m := range counted {
			seen[m.Labels[constraint.TopologyKey]] = true
		}
		domains = len(seen)
		for _, m := range c.Nodes {
			if sameDomain(m, node, constraint.TopologyKey) && (!own || hasAllKeys(m, soft)) &&
				isIncluded(pod, constraint, m) {
				pods += c.countMatching(pod, selector, m)
			}
		}
	}
	return float64(pods)*math.Log(float64(domains+2)) + float64(constraint.MaxSkew-1)
}

// scoreInterPod: the sum of the weights of the preferred terms that match in the node's domains, of this pod and of
// existing pods; a required affinity term of an existing pod counts 1.
func (c *Cluster) scoreInterPod(pod *corev1.Pod, fit []*corev1.Node) []int64 {
	prefer := func(p *corev1.Pod) (to, from []corev1.WeightedPodAffinityTerm) {
		if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
			to = a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		}
		if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
			from = a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		}
		return to, from
	}
	scores := make([]int64, len(fit))
	for i, n := range fit {
		for _, o := range c.Pods {
			m := c.nodeOf(o)
			add := func(of, other *corev1.Pod, ts []corev1.WeightedPodAffinityTerm, sign int64) {
				for _, t := range ts {
					if sameDomain(m, n, t.PodAffinityTerm.TopologyKey) && c.termMatches(of, &t.PodAffinityTerm, other) {
						scores[i] += sign * int64(t.Weight)
					}
				}
			}
			to, from := prefer(pod)
			add(pod, o, to, 1)
			add(pod, o, from, -1)
			to, from = prefer(o)
			add(o, pod, to, 1)
			add(o, pod, from, -1)
			for _, t := range requiredAffinity(o) {
				add(o, pod, []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: t}}, 1)
			}
		}
	}
	if len(fit) == 0 {
		return scores
	}
	least := slices.Min(scores)
	most := slices.Max(scores)
	for i := range scores {
		if most > least {
			scores[i] = int64(100 * (float64(scores[i]-least) / float64(most-least)))
		} else {
			scores[i] = 0
		}
	}
	return scores
}
