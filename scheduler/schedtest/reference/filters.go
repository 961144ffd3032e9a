// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func isOtherNode(_ *Cluster, p *corev1.Pod, n *corev1.Node) bool {
	return p.Spec.NodeName != "" && p.Spec.NodeName != n.Name
}

func isUnschedulable(_ *Cluster, p *corev1.Pod, n *corev1.Node) bool {
	return n.Spec.Unschedulable && !tolerates(p.Spec.Tolerations, corev1.Taint{
		Key:    corev1.TaintNodeUnschedulable,
		Effect: corev1.TaintEffectNoSchedule,
	})
}

func isTainted(_ *Cluster, p *corev1.Pod, n *corev1.Node) bool { return hasUntoleratedTaint(n, p) }

func mismatchesNodeAffinity(_ *Cluster, p *corev1.Pod, n *corev1.Node) bool {
	return !matchesNodeAffinity(p, n)
}

// ports returns the host ports of a pod's containers and sidecars.
func ports(p *corev1.Pod) []corev1.ContainerPort {
	var all []corev1.ContainerPort
	containers := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				all = append(all, port)
			}
		}
	}
	return all
}

// hasPortConflict: a pod on the node has a host port of this pod, on the same address; 0.0.0.0, or none, is every
// address.
func (c *Cluster) hasPortConflict(p *corev1.Pod, n *corev1.Node) bool {
	protocol := func(p corev1.ContainerPort) corev1.Protocol {
		if p.Protocol == "" {
			return corev1.ProtocolTCP
		}
		return p.Protocol
	}
	every := func(p corev1.ContainerPort) bool { return p.HostIP == "" || p.HostIP == "0.0.0.0" }
	for _, o := range c.podsOn(n) {
		for _, has := range ports(o) {
			for _, want := range ports(p) {
				if has.HostPort == want.HostPort && protocol(has) == protocol(want) &&
					(every(has) || every(want) || has.HostIP == want.HostIP) {
					return true
				}
			}
		}
	}
	return false
}

// spreadSelector returns the selector of the pods that a constraint counts.
func spreadSelector(p *corev1.Pod, t *corev1.TopologySpreadConstraint) *metav1.LabelSelector {
	return withLabelKeys(t.LabelSelector, p, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
}

// countMatching counts the pods on a node that a constraint of p counts: those of p's namespace that are not
// terminating.
func (c *Cluster) countMatching(p *corev1.Pod, s *metav1.LabelSelector, n *corev1.Node) int64 {
	var count int64
	for _, o := range c.podsOn(n) {
		if o.Namespace == p.Namespace && o.DeletionTimestamp == nil && matchesSelector(s, o.Labels) {
			count++
		}
	}
	return count
}

func hasAllKeys(n *corev1.Node, ts []corev1.TopologySpreadConstraint) bool {
	for _, t := range ts {
		if _, ok := n.Labels[t.TopologyKey]; !ok {
			return false
		}
	}
	return true
}

// isIncluded reports whether the constraint's node inclusion policies include a node.
func isIncluded(p *corev1.Pod, t *corev1.TopologySpreadConstraint, n *corev1.Node) bool {
	ignoresAffinity := t.NodeAffinityPolicy != nil && *t.NodeAffinityPolicy == corev1.NodeInclusionPolicyIgnore
	honorsTaints := t.NodeTaintsPolicy != nil && *t.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
	return (ignoresAffinity || matchesNodeAffinity(p, n)) && (!honorsTaints || !hasUntoleratedTaint(n, p))
}

func spreadConstraints(p *corev1.Pod, when corev1.UnsatisfiableConstraintAction) []corev1.TopologySpreadConstraint {
	var ts []corev1.TopologySpreadConstraint
	for _, t := range p.Spec.TopologySpreadConstraints {
		if t.WhenUnsatisfiable == when {
			ts = append(ts, t)
		}
	}
	return ts
}

// exceedsMaxSkew: with the pod, the node's domain would have over maxSkew pods more than the domain with the fewest.
func (c *Cluster) exceedsMaxSkew(pod *corev1.Pod, node *corev1.Node) bool {
	hard := spreadConstraints(pod, corev1.DoNotSchedule)
	for _, constraint := range hard {
		if _, ok := node.Labels[constraint.TopologyKey]; !ok {
			return true
		}
		selector := spreadSelector(pod, &constraint)
		counts := map[string]int64{}
		for _, m := range c.Nodes {
			if hasAllKeys(m, hard) && isIncluded(pod, &constraint, m) {
				counts[m.Labels[constraint.TopologyKey]] += c.countMatching(pod, selector, m)
			}
		}
		var least, self int64
		for i, v := range values(counts) {
			if i == 0 || v < least {
				least = v
			}
		}
		if constraint.MinDomains != nil && len(counts) < int(*constraint.MinDomains) {
			least = 0
		}
		if matchesSelector(selector, pod.Labels) {
			self = 1
		}
		if counts[node.Labels[constraint.TopologyKey]]+self-least > int64(constraint.MaxSkew) {
			return true
		}
	}
	return false
}

func values(m map[string]int64) []int64 {
	var vs []int64
	for _, v := range m {
		vs = append(vs, v)
	}
	return vs
}

func requiredAffinity(p *corev1.Pod) []corev1.PodAffinityTerm {
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func requiredAntiAffinity(p *corev1.Pod) []corev1.PodAffinityTerm {
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// violatesInterPodAffinity: in a topology domain of the node there is no pod that a required affinity term selects, or
// there is one that a required anti-affinity term of this pod selects, or one with such a term that selects this pod.
func (c *Cluster) violatesInterPodAffinity(pod *corev1.Pod, node *corev1.Node) bool {
	for _, o := range c.Pods {
		m := c.nodeOf(o)
		for _, t := range requiredAntiAffinity(pod) {
			if c.termMatches(pod, &t, o) && sameDomain(m, node, t.TopologyKey) {
				return true
			}
		}
		for _, t := range requiredAntiAffinity(o) {
			if c.termMatches(o, &t, pod) && sameDomain(m, node, t.TopologyKey) {
				return true
			}
		}
	}
	return !c.satisfiesAffinity(pod, node)
}

// satisfiesAffinity: for each required affinity term there is a pod in the node's topology domain that all terms
// select; or all terms select the pod itself, and there is no such pod in the cluster.
func (c *Cluster) satisfiesAffinity(pod *corev1.Pod, node *corev1.Node) bool {
	terms := requiredAffinity(pod)
	all := func(o *corev1.Pod) bool {
		for _, t := range terms {
			if !c.termMatches(pod, &t, o) {
				return false
			}
		}
		return true
	}
	found := make([]bool, len(terms))
	anywhere := false
	for _, o := range c.Pods {
		if !all(o) {
			continue
		}
		for i, t := range terms {
			found[i] = found[i] || sameDomain(c.nodeOf(o), node, t.TopologyKey)
			anywhere = anywhere || sameDomain(c.nodeOf(o), c.nodeOf(o), t.TopologyKey)
		}
	}
	for _, t := range terms {
		if _, ok := node.Labels[t.TopologyKey]; !ok {
			return false
		}
	}
	return !slices.Contains(found, false) || !anywhere && all(pod)
}
