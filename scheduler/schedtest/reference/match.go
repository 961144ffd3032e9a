// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// selects reports whether a label selector matches. None matches nothing, an empty one everything.
func selects(s *metav1.LabelSelector, labels map[string]string) bool {
	if s == nil {
		return false
	}
	for k, want := range s.MatchLabels {
		if got, ok := labels[k]; !ok || got != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		if !holds(string(e.Operator), e.Key, e.Values, labels) {
			return false
		}
	}
	return true
}

// withKeys adds to a selector that the pod's own value of each key is required, or excluded.
func withKeys(s *metav1.LabelSelector, p *corev1.Pod, keys []string, op metav1.LabelSelectorOperator) *metav1.LabelSelector {
	if s == nil {
		return nil
	}
	s = s.DeepCopy()
	for _, k := range keys {
		if v, ok := p.Labels[k]; ok {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: op, Values: []string{v}})
		}
	}
	return s
}

// holds judges one expression over labels.
func holds(op, key string, values []string, labels map[string]string) bool {
	got, has := labels[key]
	switch op {
	case "In":
		return has && slices.Contains(values, got)
	case "NotIn":
		return !has || !slices.Contains(values, got)
	case "Exists":
		return has
	case "DoesNotExist":
		return !has
	case "Gt", "Lt":
		a, err := strconv.ParseInt(got, 10, 64)
		b, err2 := strconv.ParseInt(values[0], 10, 64)
		if !has || err != nil || err2 != nil {
			return false
		}
		return op == "Gt" && a > b || op == "Lt" && a < b
	default:
		return false
	}
}

// meets judges a term of node affinity: all its expressions hold. A term that says nothing matches no node.
func meets(t *corev1.NodeSelectorTerm, n *corev1.Node) bool {
	if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
		return false
	}
	for _, e := range t.MatchExpressions {
		if !holds(string(e.Operator), e.Key, e.Values, n.Labels) {
			return false
		}
	}
	for _, e := range t.MatchFields {
		if !holds(string(e.Operator), e.Key, e.Values, map[string]string{"metadata.name": n.Name}) {
			return false
		}
	}
	return true
}

// wants reports whether the node is one that the pod's node selector and required node affinity ask for.
func wants(p *corev1.Pod, n *corev1.Node) bool {
	for k, v := range p.Spec.NodeSelector {
		if got, ok := n.Labels[k]; !ok || got != v {
			return false
		}
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if meets(&t, n) {
			return true
		}
	}
	return false
}

// bears reports whether any toleration covers the taint.
func bears(ts []corev1.Toleration, taint corev1.Taint) bool {
	for _, t := range ts {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			continue
		}
		switch t.Operator {
		case corev1.TolerationOpExists:
			return true
		case corev1.TolerationOpEqual, "":
			if t.Value == taint.Value {
				return true
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt: // the taint's value is less, or greater, than the toleration's
			mine, err := strconv.ParseInt(t.Value, 10, 64)
			its, err2 := strconv.ParseInt(taint.Value, 10, 64)
			if err == nil && err2 == nil && (t.Operator == corev1.TolerationOpLt && its < mine || t.Operator == corev1.TolerationOpGt && its > mine) {
				return true
			}
		}
	}
	return false
}

// repels reports whether the node has a taint that keeps the pod off.
func repels(n *corev1.Node, p *corev1.Pod) bool {
	for _, t := range n.Spec.Taints {
		if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !bears(p.Spec.Tolerations, t) {
			return true
		}
	}
	return false
}

// counts reports whether a term of inter-pod affinity of one pod is about another.
func (c *Cluster) counts(of *corev1.Pod, t *corev1.PodAffinityTerm, other *corev1.Pod) bool {
	inNamespace := slices.Contains(t.Namespaces, other.Namespace) ||
		t.NamespaceSelector != nil && selects(t.NamespaceSelector, c.Namespaces[other.Namespace]) ||
		len(t.Namespaces) == 0 && t.NamespaceSelector == nil && of.Namespace == other.Namespace
	s := withKeys(t.LabelSelector, of, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
	s = withKeys(s, of, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	return inNamespace && selects(s, other.Labels)
}

// together reports whether two nodes have the same value of a label.
func together(a, b *corev1.Node, key string) bool {
	if a == nil || b == nil {
		return false
	}
	x, ok := a.Labels[key]
	y, ok2 := b.Labels[key]
	return ok && ok2 && x == y
}
