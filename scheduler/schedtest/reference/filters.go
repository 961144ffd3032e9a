// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func isAnother(_ *Cluster, p *corev1.Pod, n *corev1.Node) bool {
	return p.Spec.NodeName != "" && p.Spec.NodeName != n.Name
}

func isCordoned(_ *Cluster, p *corev1.Pod, n *corev1.Node) bool {
	return n.Spec.Unschedulable && !bears(p.Spec.Tolerations, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
}

func isTainted(_ *Cluster, p *corev1.Pod, n *corev1.Node) bool { return repels(n, p) }

func isUnwanted(_ *Cluster, p *corev1.Pod, n *corev1.Node) bool { return !wants(p, n) }

// ports lists the host ports of a pod's containers and sidecars.
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

// isTaken: a pod on the node has a host port that this one wants, on the same address; 0.0.0.0, or none, is every address.
func (c *Cluster) isTaken(p *corev1.Pod, n *corev1.Node) bool {
	protocol := func(p corev1.ContainerPort) corev1.Protocol {
		if p.Protocol == "" {
			return corev1.ProtocolTCP
		}
		return p.Protocol
	}
	every := func(p corev1.ContainerPort) bool { return p.HostIP == "" || p.HostIP == "0.0.0.0" }
	for _, o := range c.on(n) {
		for _, has := range ports(o) {
			for _, want := range ports(p) {
				if has.HostPort == want.HostPort && protocol(has) == protocol(want) && (every(has) || every(want) || has.HostIP == want.HostIP) {
					return true
				}
			}
		}
	}
	return false
}

// spreadSelector is whom a constraint counts.
func spreadSelector(p *corev1.Pod, t *corev1.TopologySpreadConstraint) *metav1.LabelSelector {
	return withKeys(t.LabelSelector, p, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
}

// alike counts the pods on a node that a constraint of p counts: of p's namespace, and not on their way out. A selector that says nothing
// counts nobody, although it matches.
func (c *Cluster) alike(p *corev1.Pod, s *metav1.LabelSelector, n *corev1.Node) int64 {
	if s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return 0
	}
	var count int64
	for _, o := range c.on(n) {
		if o.Namespace == p.Namespace && o.DeletionTimestamp == nil && selects(s, o.Labels) {
			count++
		}
	}
	return count
}

func hasAll(n *corev1.Node, ts []corev1.TopologySpreadConstraint) bool {
	for _, t := range ts {
		if _, ok := n.Labels[t.TopologyKey]; !ok {
			return false
		}
	}
	return true
}

// matters reports whether the constraint's policies let a node count.
func matters(p *corev1.Pod, t *corev1.TopologySpreadConstraint, n *corev1.Node) bool {
	ignoresAffinity := t.NodeAffinityPolicy != nil && *t.NodeAffinityPolicy == corev1.NodeInclusionPolicyIgnore
	honorsTaints := t.NodeTaintsPolicy != nil && *t.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
	return (ignoresAffinity || wants(p, n)) && (!honorsTaints || !repels(n, p))
}

func constraints(p *corev1.Pod, when corev1.UnsatisfiableConstraintAction) []corev1.TopologySpreadConstraint {
	var ts []corev1.TopologySpreadConstraint
	for _, t := range p.Spec.TopologySpreadConstraints {
		if t.WhenUnsatisfiable == when {
			ts = append(ts, t)
		}
	}
	return ts
}

// isUneven: with the pod there, the node's domain would have more than maxSkew pods more than the one with the fewest.
func (c *Cluster) isUneven(p *corev1.Pod, n *corev1.Node) bool {
	hard := constraints(p, corev1.DoNotSchedule)
	for _, t := range hard {
		if _, ok := n.Labels[t.TopologyKey]; !ok {
			return true
		}
		s := spreadSelector(p, &t)
		counts := map[string]int64{}
		for _, m := range c.Nodes {
			if hasAll(m, hard) && matters(p, &t, m) {
				counts[m.Labels[t.TopologyKey]] += c.alike(p, s, m)
			}
		}
		var least, self int64
		for i, v := range values(counts) {
			if i == 0 || v < least {
				least = v
			}
		}
		if t.MinDomains != nil && len(counts) < int(*t.MinDomains) {
			least = 0
		}
		if selects(s, p.Labels) {
			self = 1
		}
		if counts[n.Labels[t.TopologyKey]]+self-least > int64(t.MaxSkew) {
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

func near(p *corev1.Pod) []corev1.PodAffinityTerm {
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func away(p *corev1.Pod) []corev1.PodAffinityTerm {
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// isUnfriendly: a pod that this one wants near is not around the node, or one that it wants away is, or one that wants it away.
func (c *Cluster) isUnfriendly(p *corev1.Pod, n *corev1.Node) bool {
	for _, o := range c.Pods {
		m := c.where(o)
		for _, t := range away(p) {
			if c.counts(p, &t, o) && together(m, n, t.TopologyKey) {
				return true
			}
		}
		for _, t := range away(o) {
			if c.counts(o, &t, p) && together(m, n, t.TopologyKey) {
				return true
			}
		}
	}
	return !c.hasFriends(p, n)
}

// hasFriends: for each required term there is a pod around the node that all of them are about; or no such pod is anywhere and they
// are about the pod itself, which is the first of its kind.
func (c *Cluster) hasFriends(p *corev1.Pod, n *corev1.Node) bool {
	terms := near(p)
	all := func(o *corev1.Pod) bool {
		for _, t := range terms {
			if !c.counts(p, &t, o) {
				return false
			}
		}
		return true
	}
	found, anywhere := make([]bool, len(terms)), false
	for _, o := range c.Pods {
		if !all(o) {
			continue
		}
		for i, t := range terms {
			found[i] = found[i] || together(c.where(o), n, t.TopologyKey)
			anywhere = anywhere || together(c.where(o), c.where(o), t.TopologyKey)
		}
	}
	for _, t := range terms {
		if _, ok := n.Labels[t.TopologyKey]; !ok {
			return false
		}
	}
	return !slices.Contains(found, false) || !anywhere && all(p)
}
