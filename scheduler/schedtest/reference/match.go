// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// matchesSelector reports whether a label selector matches. nil matches nothing, an empty one everything.
func matchesSelector(s *metav1.LabelSelector, labels map[string]string) bool {
	if s == nil {
		return false
	}
	for k, want := range s.MatchLabels {
		if got, ok := labels[k]; !ok || got != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		if !matchesExpression(string(e.Operator), e.Key, e.Values, labels) {
			return false
		}
	}
	return true
}

// withLabelKeys adds requirements to a selector: the pod's own value of each key is required, or excluded.
func withLabelKeys(
	selector *metav1.LabelSelector, p *corev1.Pod, keys []string, op metav1.LabelSelectorOperator,
) *metav1.LabelSelector {
	if selector == nil {
		return nil
	}
	selector = selector.DeepCopy()
	for _, k := range keys {
		if v, ok := p.Labels[k]; ok {
			selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
				Key:      k,
				Operator: op,
				Values:   []string{v},
			})
		}
	}
	return selector
}

// matchesExpression reports whether an expression matches labels.
func matchesExpression(op, key string, values []string, labels map[string]string) bool {
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

// matchesNodeTerm reports whether all expressions of a node selector term match. An empty term matches no node.
func matchesNodeTerm(t *corev1.NodeSelectorTerm, n *corev1.Node) bool {
	if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
		return false
	}
	for _, e := range t.MatchExpressions {
		if !matchesExpression(string(e.Operator), e.Key, e.Values, n.Labels) {
			return false
		}
	}
	for _, e := range t.MatchFields {
		if !matchesExpression(string(e.Operator), e.Key, e.Values, map[string]string{"metadata.name": n.Name}) {
			return false
		}
	}
	return true
}

// matchesNodeAffinity reports whether the pod's node selector and required node affinity match the node.
func matchesNodeAffinity(p *corev1.Pod, node *corev1.Node) bool {
	for k, v := range p.Spec.NodeSelector {
		if got, ok := node.Labels[k]; !ok || got != v {
			return false
		}
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if matchesNodeTerm(&t, node) {
			return true
		}
	}
	return false
}

// tolerates reports whether any toleration matches the taint.
func tolerates(ts []corev1.Toleration, taint corev1.Taint) bool {
	for _, toleration := range ts {
		if toleration.Effect != "" && toleration.Effect != taint.Effect ||
			toleration.Key != "" && toleration.Key != taint.Key {
			continue
		}
		switch toleration.Operator {
		case corev1.TolerationOpExists:
			return true
		case corev1.TolerationOpEqual, "":
			if toleration.Value == taint.Value {
				return true
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt:
			// the taint's value is less, or greater, than the toleration's
			mine, err := strconv.ParseInt(toleration.Value, 10, 64)
			its, err2 := strconv.ParseInt(taint.Value, 10, 64)
			if err == nil && err2 == nil && (toleration.Operator == corev1.TolerationOpLt && its < mine ||
				toleration.Operator == corev1.TolerationOpGt && its > mine) {
				return true
			}
		}
	}
	return false
}

// hasUntoleratedTaint reports whether the node has a NoSchedule or NoExecute taint that the pod does not tolerate.
func hasUntoleratedTaint(n *corev1.Node, p *corev1.Pod) bool {
	for _, t := range n.Spec.Taints {
		if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) &&
			!tolerates(p.Spec.Tolerations, t) {
			return true
		}
	}
	return false
}

// termMatches reports whether an inter-pod affinity term of one pod selects another pod.
func (c *Cluster) termMatches(of *corev1.Pod, t *corev1.PodAffinityTerm, other *corev1.Pod) bool {
	inNamespace := slices.Contains(t.Namespaces, other.Namespace) ||
		t.NamespaceSelector != nil && matchesSelector(t.NamespaceSelector, c.Namespaces[other.Namespace]) ||
		len(t.Namespaces) == 0 && t.NamespaceSelector == nil && of.Namespace == other.Namespace
	s := withLabelKeys(t.LabelSelector, of, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
	s = withLabelKeys(s, of, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	return inNamespace && matchesSelector(s, other.Labels)
}

// sameDomain reports whether two nodes are in the same topology domain: they have the same value of a label.
func sameDomain(a, b *corev1.Node, key string) bool {
	if a == nil || b == nil {
		return false
	}
	x, ok := a.Labels[key]
	y, ok2 := b.Labels[key]
	return ok && ok2 && x == y
}
