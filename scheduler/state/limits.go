// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxRules bounds what a pod may say about nodes and other pods. Each rule is held against every node or pod, while other pods wait: in a
// large cluster 10,000 of them would take seconds. Kubernetes has no such bound, and no pod that is meant comes near this one.
const maxRules = 500

// valuesPerRule is how many values of an expression cost as much as a rule.
const valuesPerRule = 32

// checkRules returns an error for a pod that says too much.
func checkRules(s *corev1.PodSpec) error {
	if n := rules(s); n > maxRules {
		return fmt.Errorf("the pod has %d rules about nodes and other pods, the scheduler looks at no more than %d", n, maxRules)
	}
	return nil
}

// rules counts the pod's terms, expressions, constraints and tolerations.
func rules(s *corev1.PodSpec) int {
	n := len(s.NodeSelector) + len(s.Tolerations)
	for i := range s.TopologySpreadConstraints {
		t := &s.TopologySpreadConstraints[i]
		n += 1 + ofSelector(t.LabelSelector) + len(t.MatchLabelKeys)
	}
	if s.Affinity == nil {
		return n
	}
	if a := s.Affinity.NodeAffinity; a != nil {
		if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			for i := range r.NodeSelectorTerms {
				n += ofNodeTerm(&r.NodeSelectorTerms[i])
			}
		}
		for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			n += ofNodeTerm(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
		}
	}
	if a := s.Affinity.PodAffinity; a != nil {
		n += ofPodTerms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := s.Affinity.PodAntiAffinity; a != nil {
		n += ofPodTerms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return n
}

func ofNodeTerm(t *corev1.NodeSelectorTerm) int {
	n := 1
	for i := range t.MatchExpressions {
		n += 1 + len(t.MatchExpressions[i].Values)/valuesPerRule
	}
	for i := range t.MatchFields {
		n += 1 + len(t.MatchFields[i].Values)/valuesPerRule
	}
	return n
}

func ofPodTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) int {
	n := 0
	add := func(t *corev1.PodAffinityTerm) {
		n += 1 + ofSelector(t.LabelSelector) + ofSelector(t.NamespaceSelector) + len(t.Namespaces)/valuesPerRule + len(t.MatchLabelKeys) + len(t.MismatchLabelKeys)
	}
	for i := range required {
		add(&required[i])
	}
	for i := range preferred {
		add(&preferred[i].PodAffinityTerm)
	}
	return n
}

func ofSelector(s *metav1.LabelSelector) int {
	if s == nil {
		return 0
	}
	n := len(s.MatchLabels)
	for i := range s.MatchExpressions {
		n += 1 + len(s.MatchExpressions[i].Values)/valuesPerRule
	}
	return n
}
