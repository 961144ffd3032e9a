// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
)

// ValidateTolerations checks tolerations, of a pod or of a namespace's or class's defaults.
func ValidateTolerations(list []corev1.Toleration, path *field.Path) field.ErrorList {
	l := check.At(path)
	Tolerations(l, list)
	return l.Errors()
}

// Tolerations checks the tolerations at which errs stands.
func Tolerations(errs *check.List, list []corev1.Toleration) {
	for i := range list {
		toleration := &list[i]
		errs.Index(i)
		if toleration.Key != "" {
			errs.Qualified("key", toleration.Key)
		} else if toleration.Operator != corev1.TolerationOpExists {
			errs.Invalid("operator", toleration.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
		}
		if toleration.TolerationSeconds != nil && toleration.Effect != corev1.TaintEffectNoExecute {
			errs.Invalid("effect", toleration.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
		}
		tolerationOperator(errs, toleration)
		if toleration.Effect != "" {
			TaintEffect(errs, toleration.Effect)
		}
		errs.Out()
	}
}

func tolerationOperator(errs *check.List, toleration *corev1.Toleration) {
	switch toleration.Operator {
	case corev1.TolerationOpEqual, "":
		if msgs := check.LabelValue(toleration.Value); len(msgs) > 0 {
			errs.Invalid("operator", toleration.Value, strings.Join(msgs, ";"))
		}
	case corev1.TolerationOpExists:
		if toleration.Value != "" {
			errs.Invalid("operator", toleration.Value, "value must be empty when `operator` is 'Exists'")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		// behind TaintTolerationComparisonOperators, which is off; the message says otherwise
		check.NotSupported(errs, "operator", toleration.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists,
			corev1.TolerationOpLt, corev1.TolerationOpGt)
	default:
		check.NotSupported(errs, "operator", toleration.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists)
	}
}

// TaintEffect wants one of the effects at the child "effect".
func TaintEffect(l *check.List, e corev1.TaintEffect) {
	check.OneOf(l, "effect", e, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
		corev1.TaintEffectNoExecute)
}

func checkGates(errs *check.List, spec *corev1.PodSpec) {
	errs.In("readinessGates")
	for i := range spec.ReadinessGates {
		errs.Index(i)
		errs.Qualified("conditionType", string(spec.ReadinessGates[i].ConditionType))
		errs.Out()
	}
	errs.Out()
	var seen check.Set
	errs.In("schedulingGates")
	for i := range spec.SchedulingGates {
		name := spec.SchedulingGates[i].Name
		errs.Index(i)
		errs.Qualified("", name)
		if !seen.Add(name) {
			errs.Duplicate("", name)
		}
		errs.Out()
	}
	errs.Out()
}

func checkAffinity(errs *check.List, spec *corev1.PodSpec) {
	a := spec.Affinity
	if a == nil {
		return
	}
	errs.In("affinity")
	if n := a.NodeAffinity; n != nil {
		errs.In("nodeAffinity")
		checkNodeAffinity(errs, n)
		errs.Out()
	}
	if p := a.PodAffinity; p != nil {
		errs.In("podAffinity")
		checkPodTerms(errs, p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution)
		errs.Out()
	}
	if p := a.PodAntiAffinity; p != nil {
		errs.In("podAntiAffinity")
		checkPodTerms(errs, p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution)
		errs.Out()
	}
	errs.Out()
}

func checkNodeAffinity(errs *check.List, n *corev1.NodeAffinity) {
	if r := n.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		errs.In("requiredDuringSchedulingIgnoredDuringExecution")
		NodeSelector(errs, r)
		errs.Out()
	}
	errs.In("preferredDuringSchedulingIgnoredDuringExecution")
	for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
		p := &n.PreferredDuringSchedulingIgnoredDuringExecution[i]
		errs.Index(i)
		checkWeight(errs, p.Weight)
		errs.In("preference")
		selectorTerm(errs, &p.Preference, true)
		errs.Out()
		errs.Out()
	}
	errs.Out()
}

func checkWeight(errs *check.List, w int32) {
	if w <= 0 || w > 100 {
		errs.Invalid("weight", w, "must be in the range 1-100")
	}
}

// NodeSelector checks a required node selector at the current field of l.
func NodeSelector(l *check.List, s *corev1.NodeSelector) {
	l.In("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		l.Required("", "must have at least one node selector term")
	}
	for i := range s.NodeSelectorTerms {
		l.Index(i)
		selectorTerm(l, &s.NodeSelectorTerms[i], false)
		l.Out()
	}
	l.Out()
}

// selectorTerm checks one term; anyValue lets values pass that no label can have, as preferences always have.
func selectorTerm(errs *check.List, term *corev1.NodeSelectorTerm, anyValue bool) {
	errs.In("matchExpressions")
	for i := range term.MatchExpressions {
		errs.Index(i)
		selectorRequirement(errs, &term.MatchExpressions[i], anyValue)
		errs.Out()
	}
	errs.Out()
	errs.In("matchFields")
	for i := range term.MatchFields {
		errs.Index(i)
		fieldRequirement(errs, &term.MatchFields[i])
		errs.Out()
	}
	errs.Out()
}

func selectorRequirement(errs *check.List, requirement *corev1.NodeSelectorRequirement, anyValue bool) {
	switch requirement.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(requirement.Values) == 0 {
			errs.Required("values", "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(requirement.Values) > 0 {
			errs.Forbidden("values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(requirement.Values) != 1 {
			errs.Required("values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		errs.Invalid("operator", requirement.Operator, "not a valid selector operator")
	}
	errs.Qualified("key", requirement.Key)
	if anyValue {
		return
	}
	errs.In("values")
	for i, v := range requirement.Values {
		errs.Index(i)
		errs.LabelValue("", v)
		errs.Out()
	}
	errs.Out()
}

func fieldRequirement(errs *check.List, requirement *corev1.NodeSelectorRequirement) {
	switch requirement.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(requirement.Values) != 1 {
			errs.Required("values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
	default:
		errs.Invalid("operator", requirement.Operator, "not a valid selector operator")
	}
	if requirement.Key != metav1.ObjectNameField {
		errs.Invalid("key", requirement.Key, "not a valid field selector key")
		return
	}
	errs.In("values")
	for i, v := range requirement.Values {
		errs.Index(i)
		errs.Name("", v, apivalidation.NameIsDNSSubdomain)
		errs.Out()
	}
	errs.Out()
}

func checkPodTerms(errs *check.List, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
	errs.In("requiredDuringSchedulingIgnoredDuringExecution")
	for i := range required {
		errs.Index(i)
		checkPodTerm(errs, &required[i])
		errs.Out()
	}
	errs.Out()
	errs.In("preferredDuringSchedulingIgnoredDuringExecution")
	for i := range preferred {
		errs.Index(i)
		checkWeight(errs, preferred[i].Weight)
		errs.In("podAffinityTerm")
		checkPodTerm(errs, &preferred[i].PodAffinityTerm)
		errs.Out()
		errs.Out()
	}
	errs.Out()
}

func checkPodTerm(errs *check.List, term *corev1.PodAffinityTerm) {
	errs.Selector("labelSelector", term.LabelSelector)
	errs.Selector("namespaceSelector", term.NamespaceSelector)
	for _, ns := range term.Namespaces {
		errs.Name("namespace", ns, apivalidation.ValidateNamespaceName)
	}
	checkMatchKeys(errs, "matchLabelKeys", term.MatchLabelKeys, term.LabelSelector)
	checkMatchKeys(errs, "mismatchLabelKeys", term.MismatchLabelKeys, term.LabelSelector)
	checkKeysTwice(errs, term)
	other := check.SetOf(term.MismatchLabelKeys)
	for i, k := range term.MatchLabelKeys {
		if other.Has(k) {
			errs.In("matchLabelKeys")
			errs.Index(i)
			errs.Invalid("", k, "exists in both matchLabelKeys and mismatchLabelKeys")
			errs.Out()
			errs.Out()
		}
	}
	if term.TopologyKey == "" {
		errs.Required("topologyKey", "can not be empty")
	}
	errs.Qualified("topologyKey", term.TopologyKey)
}

// checkKeysTwice reports keys of matchLabelKeys that the selector also names. The selector has by now the requirement
// that PrepareCreate made of each key, so that a key is in it twice when the user put it there too.
func checkKeysTwice(errs *check.List, term *corev1.PodAffinityTerm) {
	if term.LabelSelector == nil || len(term.MatchLabelKeys) == 0 {
		return
	}
	var seen check.Set
	for k := range term.LabelSelector.MatchLabels {
		seen.Add(k)
	}
	keys := check.SetOf(term.MatchLabelKeys)
	for _, e := range term.LabelSelector.MatchExpressions {
		if keys.Has(e.Key) && seen.Has(e.Key) {
			errs.Index(slices.Index(term.MatchLabelKeys, e.Key))
			errs.Invalid("", e.Key, "exists in both matchLabelKeys and labelSelector")
			errs.Out()
		}
		seen.Add(e.Key)
	}
}

func checkMatchKeys(errs *check.List, child string, keys []string, s *metav1.LabelSelector) {
	if len(keys) == 0 {
		return
	}
	if s == nil {
		errs.Forbidden(child, "must not be specified when labelSelector is not set")
		return
	}
	errs.In(child)
	for i, k := range keys {
		errs.Index(i)
		errs.Qualified("", k)
		errs.Out()
	}
	errs.Out()
}

func checkSpread(errs *check.List, labels map[string]string, list []corev1.TopologySpreadConstraint) {
	if len(list) == 0 {
		return
	}
	type pair struct {
		key  string
		when corev1.UnsatisfiableConstraintAction
	}
	last := make(map[pair]int, len(list))
	for i := range list {
		last[pair{list[i].TopologyKey, list[i].WhenUnsatisfiable}] = i
	}
	errs.In("topologySpreadConstraints")
	for i := range list {
		constraint := &list[i]
		errs.Index(i)
		if constraint.MaxSkew <= 0 {
			errs.Invalid("maxSkew", constraint.MaxSkew, "must be greater than zero")
		}
		if constraint.TopologyKey == "" {
			errs.Required("topologyKey", "can not be empty")
		}
		if w := constraint.WhenUnsatisfiable; w != corev1.DoNotSchedule && w != corev1.ScheduleAnyway {
			check.NotSupported(errs, "whenUnsatisfiable", w, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		}
		if last[pair{constraint.TopologyKey, constraint.WhenUnsatisfiable}] > i {
			errs.Duplicate("{topologyKey, whenUnsatisfiable}",
				fmt.Sprintf("{%v, %v}", constraint.TopologyKey, constraint.WhenUnsatisfiable))
		}
		if d := constraint.MinDomains; d != nil {
			if *d <= 0 {
				errs.Invalid("minDomains", *d, "must be greater than zero")
			}
			if constraint.WhenUnsatisfiable != corev1.DoNotSchedule {
				errs.Invalid("minDomains", *d, fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s",
					corev1.DoNotSchedule, constraint.WhenUnsatisfiable))
			}
		}
		check.Pointer(errs, "nodeAffinityPolicy", constraint.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor,
			corev1.NodeInclusionPolicyIgnore)
		check.Pointer(errs, "nodeTaintsPolicy", constraint.NodeTaintsPolicy, corev1.NodeInclusionPolicyHonor,
			corev1.NodeInclusionPolicyIgnore)
		checkSpreadKeys(errs, labels, constraint)
		errs.Selector("labelSelector", constraint.LabelSelector)
		errs.Out()
	}
	errs.Out()
}

// checkSpreadKeys checks matchLabelKeys of a spread constraint; as in checkKeysTwice the selector has one requirement
// for each.
func checkSpreadKeys(errs *check.List, labels map[string]string, constraint *corev1.TopologySpreadConstraint) {
	if len(constraint.MatchLabelKeys) == 0 {
		return
	}
	checkMatchKeys(errs, "matchLabelKeys", constraint.MatchLabelKeys, constraint.LabelSelector)
	if constraint.LabelSelector == nil {
		return
	}
	times := map[string]int{}
	for i := range constraint.LabelSelector.MatchExpressions {
		times[constraint.LabelSelector.MatchExpressions[i].Key]++
	}
	errs.In("matchLabelKeys")
	for i, k := range constraint.MatchLabelKeys {
		merged := 0
		if _, ok := labels[k]; ok {
			merged = 1
		}
		if _, ok := constraint.LabelSelector.MatchLabels[k]; ok || times[k] > merged {
			errs.Index(i)
			errs.Invalid("", k, "exists in both matchLabelKeys and labelSelector")
			errs.Out()
		}
	}
	errs.Out()
}
