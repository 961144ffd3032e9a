// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxRules bounds the number of rules of a pod about nodes and other pods. Each rule is evaluated for every node or pod
// while other pods wait; in a large cluster 10,000 rules would take seconds. kube-scheduler has no such bound. Real
// pods stay far below it.
const maxRules = 500

// valuesPerRule: so many values of an expression count as one more rule.
const valuesPerRule = 32

// checkRuleCount returns an error for a pod with too many rules.
func checkRuleCount(s *corev1.PodSpec) error {
	if n := countRules(s); n > maxRules {
		return fmt.Errorf("the pod has %d rules about nodes and other pods, the scheduler looks at no more than %d", n,
			maxRules)
	}
	return nil
}

// countRules counts the pod's terms, expressions, constraints and tolerations.
func countRules(spec *corev1.PodSpec) int {
	n := len(spec.NodeSelector) + len(spec.Tolerations)
	for i := range spec.TopologySpreadConstraints {
		t := &spec.TopologySpreadConstraints[i]
		n += 1 + countSelector(t.LabelSelector) + len(t.MatchLabelKeys)
	}
	if spec.Affinity == nil {
		return n
	}
	if a := spec.Affinity.NodeAffinity; a != nil {
		if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			for i := range r.NodeSelectorTerms {
				n += countNodeTerm(&r.NodeSelectorTerms[i])
			}
		}
		for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			n += countNodeTerm(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
		}
	}
	if a := spec.Affinity.PodAffinity; a != nil {
		n += countPodTerms(a.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := spec.Affinity.PodAntiAffinity; a != nil {
		n += countPodTerms(a.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return n
}

func countNodeTerm(t *corev1.NodeSelectorTerm) int {
	n := 1
	for i := range t.MatchExpressions {
		n += 1 + len(t.MatchExpressions[i].Values)/valuesPerRule
	}
	for i := range t.MatchFields {
		n += 1 + len(t.MatchFields[i].Values)/valuesPerRule
	}
	return n
}

func countPodTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) int {
	n := 0
	add := func(t *corev1.PodAffinityTerm) {
		n += 1 + countSelector(t.LabelSelector) + countSelector(t.NamespaceSelector) +
			len(t.Namespaces)/valuesPerRule + len(t.MatchLabelKeys) + len(t.MismatchLabelKeys)
	}
	for i := range required {
		add(&required[i])
	}
	for i := range preferred {
		add(&preferred[i].PodAffinityTerm)
	}
	return n
}

func countSelector(s *metav1.LabelSelector) int {
	if s == nil {
		return 0
	}
	n := len(s.MatchLabels)
	for i := range s.MatchExpressions {
		n += 1 + len(s.MatchExpressions[i].Values)/valuesPerRule
	}
	return n
}
