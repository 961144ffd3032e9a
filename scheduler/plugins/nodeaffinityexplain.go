// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Distances of nodes that fit with other labels.
const (
	newLabelDistance    = 1.75
	otherLabelDistance  = 2.25 // of a label that has another value or must go
	unlabelableDistance = 3
)

// explain names the labels of the node selector that do not match, or of each required term the first expression. The
// hint is to label the node.
func (p NodeAffinity) explain(
	pod *state.PodInfo, info *state.NodeInfo, st *framework.Status,
) (short, hint string, distance float64) {
	if st == addedAffinityMismatch {
		return "the profile's " + describeTerms(p.Added.RequiredDuringSchedulingIgnoredDuringExecution, info.Node), "",
			unlabelableDistance
	}
	var missing []string
	for _, key := range slices.Sorted(maps.Keys(pod.Pod.Spec.NodeSelector)) {
		if want, got := pod.Pod.Spec.NodeSelector[key], info.Node.Labels[key]; got != want ||
			!hasLabel(info.Node, key) {
			missing = append(missing, fmt.Sprintf("%s: asks %s, has %s", key, want, labelText(info.Node, key)))
		}
	}
	if len(missing) > 0 {
		short = "label " + strings.Join(shorten(missing, "labels"), "; label ")
	} else {
		short = describeTerms(requiredNodes(&pod.Pod.Spec), info.Node)
	}
	hint, distance = labelHint(pod, info)
	return short, hint, distance
}

func hasLabel(n *corev1.Node, key string) bool {
	_, ok := n.Labels[key]
	return ok
}

// labelText is the value of a label, or that there is none.
func labelText(n *corev1.Node, key string) string {
	if got, ok := n.Labels[key]; ok {
		return cmp.Or(got, "an empty value")
	}
	return "none"
}

// shorten replaces what is beyond the first three of a list by their number.
func shorten(list []string, what string) []string {
	const most = 3
	if more := len(list) - most; more > 0 {
		list = append(slices.Clip(list[:most]), fmt.Sprintf("and %d %s more", more, what))
	}
	return list
}

// describeTerms names of each term the first expression that does not match.
func describeTerms(s *corev1.NodeSelector, n *corev1.Node) string {
	var terms []string
	if s != nil {
		for i := range s.NodeSelectorTerms {
			if t := mismatch(&s.NodeSelectorTerms[i], n); t != "" && !slices.Contains(terms, t) {
				terms = append(terms, t)
			}
		}
	}
	if len(terms) == 0 {
		return "required node affinity does not match its labels"
	}
	return "affinity: " + strings.Join(shorten(terms, "terms"), "; or ")
}

// mismatch describes the first expression of a term that the node does not match; empty: all match.
func mismatch(term *corev1.NodeSelectorTerm, n *corev1.Node) string {
	for i := range term.MatchExpressions {
		if e := &term.MatchExpressions[i]; !matchesAlone(
			corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{*e}}, n) {
			return "asks " + expression(e) + ", has " + labelText(n, e.Key)
		}
	}
	for i := range term.MatchFields {
		if e := &term.MatchFields[i]; !matchesAlone(
			corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{*e}}, n) {
			return "asks " + expression(e)
		}
	}
	if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
		return "an empty term matches no node"
	}
	return ""
}

func matchesAlone(t corev1.NodeSelectorTerm, n *corev1.Node) bool {
	s, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{t}})
	return err == nil && s.Match(n)
}

// expression formats a requirement for people: "zone In (a, b)".
func expression(e *corev1.NodeSelectorRequirement) string {
	if len(e.Values) == 0 {
		return e.Key + " " + string(e.Operator)
	}
	const most = 4
	values := e.Values
	if len(values) > most {
		values = append(slices.Clone(values[:most]), fmt.Sprintf("%d more", len(e.Values)-most))
	}
	return fmt.Sprintf("%s %s (%s)", e.Key, e.Operator, strings.Join(values, ", "))
}

// maxHintTerms is how many terms are tried for a hint.
const maxHintTerms = 8

// labelHint returns the fewest changes to the labels of a node with which the pod's node selector and required affinity
// match; empty: there are none, or they would change what the node is, or where it stands.
func labelHint(pod *state.PodInfo, n *state.NodeInfo) (hint string, distance float64) {
	distance = unlabelableDistance
	terms := []corev1.NodeSelectorTerm{{}}
	if required := requiredNodes(&pod.Pod.Spec); required != nil {
		terms = required.NodeSelectorTerms
	}
	for i := range terms[:min(len(terms), maxHintTerms)] {
		if text, far := termHint(pod, n, &terms[i]); text != "" && (hint == "" || far < distance) {
			hint = text
			distance = far
		}
	}
	return hint, distance
}

// termHint is labelHint for one of the required terms.
func termHint(pod *state.PodInfo, info *state.NodeInfo, t *corev1.NodeSelectorTerm) (hint string, distance float64) {
	with := &corev1.Node{ObjectMeta: info.Node.ObjectMeta}
	with.Labels = maps.Clone(info.Node.Labels)
	if with.Labels == nil {
		with.Labels = map[string]string{}
	}
	maps.Copy(with.Labels, pod.Pod.Spec.NodeSelector)
	for i := range t.MatchExpressions {
		if e := &t.MatchExpressions[i]; !matchesAlone(
			corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{*e}}, with) {
			meet(e, with.Labels)
		}
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod.Pod).Match(with); err != nil || !ok {
		return "", 0
	}
	var set, remove []string
	for _, key := range slices.Sorted(maps.Keys(with.Labels)) {
		if with.Labels[key] == info.Node.Labels[key] && hasLabel(info.Node, key) {
			continue
		}
		if isFixed(key, pod, info) {
			return "", 0
		}
		set = append(set, key+"="+with.Labels[key])
		distance += newLabelDistance
		if hasLabel(info.Node, key) {
			distance += otherLabelDistance - newLabelDistance
		}
	}
	for _, key := range slices.Sorted(maps.Keys(info.Node.Labels)) {
		if !hasLabel(with, key) {
			if isFixed(key, pod, info) {
				return "", 0
			}
			remove = append(remove, key)
			distance += otherLabelDistance
		}
	}
	var parts []string
	if len(set) > 0 {
		parts = append(parts, "label "+info.Name+" with "+strings.Join(set, " and "))
	}
	if len(remove) > 0 {
		parts = append(parts, "remove label "+strings.Join(remove, " and ")+" from "+info.Name)
	}
	return strings.Join(parts, " and "), distance
}

// meet changes labels so that they match an expression, if they can.
func meet(requirement *corev1.NodeSelectorRequirement, labels map[string]string) {
	switch requirement.Operator {
	case corev1.NodeSelectorOpExists:
		labels[requirement.Key] = "true"
		return
	case corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpDoesNotExist:
		delete(labels, requirement.Key)
		return
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
	}
	if len(requirement.Values) == 0 { // no valid expression
		return
	}
	switch requirement.Operator {
	case corev1.NodeSelectorOpIn:
		labels[requirement.Key] = requirement.Values[0]
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		limit, err := strconv.ParseInt(requirement.Values[0], 10, 64)
		if err != nil {
			return
		}
		if limit++; requirement.Operator == corev1.NodeSelectorOpLt {
			limit -= 2
		}
		if limit >= 0 { // a label's value cannot begin with a minus
			labels[requirement.Key] = strconv.FormatInt(limit, 10)
		}
	}
}

// fixedDomains are the domains of labels that say what a node is, or where it stands.
var fixedDomains = []string{
	"kubernetes.io", "beta.kubernetes.io", "topology.kubernetes.io", "failure-domain.beta.kubernetes.io",
}

// isFixed reports whether a hint must not change a label of a node: the kubelet or the cloud sets it, or other rules
// count by it.
func isFixed(key string, pod *state.PodInfo, n *state.NodeInfo) bool {
	if domain, _, ok := strings.Cut(key, "/"); ok && slices.Contains(fixedDomains, domain) {
		return true
	}
	return affinityCountsBy(key, pod, n) ||
		slices.ContainsFunc(pod.Pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
			return c.TopologyKey == key
		})
}

// affinityCountsBy reports whether a label is a topology key of the pod's affinity terms, or of the anti-affinity of
// pods on the node.
func affinityCountsBy(key string, pod *state.PodInfo, n *state.NodeInfo) bool {
	counts := func(t *state.Term) bool { return t.TopologyKey == key }
	return slices.ContainsFunc(pod.Affinity, counts) || slices.ContainsFunc(pod.AntiAffinity, counts) ||
		slices.ContainsFunc(n.Pods, func(p *state.PodInfo) bool { return slices.ContainsFunc(p.AntiAffinity, counts) })
}

// asksForLabel reports whether the node selector or the required affinity mentions a label.
func asksForLabel(s *corev1.PodSpec, key string) bool {
	if _, ok := s.NodeSelector[key]; ok {
		return true
	}
	required := requiredNodes(s)
	return required != nil && slices.ContainsFunc(required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == key
		})
	})
}
