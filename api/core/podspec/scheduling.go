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

// Tolerations checks the tolerations at which l stands.
func Tolerations(l *check.List, list []corev1.Toleration) {
	for i := range list {
		t := &list[i]
		l.Index(i)
		if t.Key != "" {
			l.Qualified("key", t.Key)
		} else if t.Operator != corev1.TolerationOpExists {
			l.Invalid("operator", t.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			l.Invalid("effect", t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
		}
		tolerationOperator(l, t)
		if t.Effect != "" {
			TaintEffect(l, t.Effect)
		}
		l.Out()
	}
}

func tolerationOperator(l *check.List, t *corev1.Toleration) {
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		if msgs := check.LabelValue(t.Value); len(msgs) > 0 {
			l.Invalid("operator", t.Value, strings.Join(msgs, ";"))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			l.Invalid("operator", t.Value, "value must be empty when `operator` is 'Exists'")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		// behind TaintTolerationComparisonOperators, which is off; the message says otherwise
		check.NotSupported(l, "operator", t.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists,
			corev1.TolerationOpLt, corev1.TolerationOpGt)
	default:
		check.NotSupported(l, "operator", t.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists)
	}
}

// TaintEffect wants one of the effects at the child "effect".
func TaintEffect(l *check.List, e corev1.TaintEffect) {
	check.OneOf(l, "effect", e, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
		corev1.TaintEffectNoExecute)
}

func (c *Checker) gates() {
	c.In("readinessGates")
	for i := range c.spec.ReadinessGates {
		c.Index(i)
		c.Qualified("conditionType", string(c.spec.ReadinessGates[i].ConditionType))
		c.Out()
	}
	c.Out()
	var seen check.Set
	c.In("schedulingGates")
	for i := range c.spec.SchedulingGates {
		name := c.spec.SchedulingGates[i].Name
		c.Index(i)
		c.Qualified("", name)
		if !seen.Add(name) {
			c.Duplicate("", name)
		}
		c.Out()
	}
	c.Out()
}

func (c *Checker) affinity() {
	a := c.spec.Affinity
	if a == nil {
		return
	}
	c.In("affinity")
	if n := a.NodeAffinity; n != nil {
		c.In("nodeAffinity")
		c.nodeAffinity(n)
		c.Out()
	}
	if p := a.PodAffinity; p != nil {
		c.In("podAffinity")
		c.podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		c.Out()
	}
	if p := a.PodAntiAffinity; p != nil {
		c.In("podAntiAffinity")
		c.podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		c.Out()
	}
	c.Out()
}

func (c *Checker) nodeAffinity(n *corev1.NodeAffinity) {
	if r := n.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		c.In("requiredDuringSchedulingIgnoredDuringExecution")
		NodeSelector(c.List, r)
		c.Out()
	}
	c.In("preferredDuringSchedulingIgnoredDuringExecution")
	for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
		p := &n.PreferredDuringSchedulingIgnoredDuringExecution[i]
		c.Index(i)
		c.weight(p.Weight)
		c.In("preference")
		selectorTerm(c.List, &p.Preference, true)
		c.Out()
		c.Out()
	}
	c.Out()
}

func (c *Checker) weight(w int32) {
	if w <= 0 || w > 100 {
		c.Invalid("weight", w, "must be in the range 1-100")
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
func selectorTerm(l *check.List, t *corev1.NodeSelectorTerm, anyValue bool) {
	l.In("matchExpressions")
	for i := range t.MatchExpressions {
		l.Index(i)
		selectorRequirement(l, &t.MatchExpressions[i], anyValue)
		l.Out()
	}
	l.Out()
	l.In("matchFields")
	for i := range t.MatchFields {
		l.Index(i)
		fieldRequirement(l, &t.MatchFields[i])
		l.Out()
	}
	l.Out()
}

func selectorRequirement(l *check.List, r *corev1.NodeSelectorRequirement, anyValue bool) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			l.Required("values", "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			l.Forbidden("values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			l.Required("values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		l.Invalid("operator", r.Operator, "not a valid selector operator")
	}
	l.Qualified("key", r.Key)
	if anyValue {
		return
	}
	l.In("values")
	for i, v := range r.Values {
		l.Index(i)
		l.LabelValue("", v)
		l.Out()
	}
	l.Out()
}

func fieldRequirement(l *check.List, r *corev1.NodeSelectorRequirement) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			l.Required("values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
	default:
		l.Invalid("operator", r.Operator, "not a valid selector operator")
	}
	if r.Key != metav1.ObjectNameField {
		l.Invalid("key", r.Key, "not a valid field selector key")
		return
	}
	l.In("values")
	for i, v := range r.Values {
		l.Index(i)
		l.Name("", v, apivalidation.NameIsDNSSubdomain)
		l.Out()
	}
	l.Out()
}

func (c *Checker) podTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
	c.In("requiredDuringSchedulingIgnoredDuringExecution")
	for i := range required {
		c.Index(i)
		c.podTerm(&required[i])
		c.Out()
	}
	c.Out()
	c.In("preferredDuringSchedulingIgnoredDuringExecution")
	for i := range preferred {
		c.Index(i)
		c.weight(preferred[i].Weight)
		c.In("podAffinityTerm")
		c.podTerm(&preferred[i].PodAffinityTerm)
		c.Out()
		c.Out()
	}
	c.Out()
}

func (c *Checker) podTerm(t *corev1.PodAffinityTerm) {
	c.Selector("labelSelector", t.LabelSelector)
	c.Selector("namespaceSelector", t.NamespaceSelector)
	for _, ns := range t.Namespaces {
		c.Name("namespace", ns, apivalidation.ValidateNamespaceName)
	}
	c.matchKeys("matchLabelKeys", t.MatchLabelKeys, t.LabelSelector)
	c.matchKeys("mismatchLabelKeys", t.MismatchLabelKeys, t.LabelSelector)
	c.keysTwice(t)
	for i, k := range t.MatchLabelKeys {
		if slices.Contains(t.MismatchLabelKeys, k) {
			c.In("matchLabelKeys")
			c.Index(i)
			c.Invalid("", k, "exists in both matchLabelKeys and mismatchLabelKeys")
			c.Out()
			c.Out()
		}
	}
	if t.TopologyKey == "" {
		c.Required("topologyKey", "can not be empty")
	}
	c.Qualified("topologyKey", t.TopologyKey)
}

// keysTwice reports keys of matchLabelKeys that the selector also names. The selector has by now the requirement that
// PrepareCreate made of each key, so that a key is in it twice when the user put it there too.
func (c *Checker) keysTwice(t *corev1.PodAffinityTerm) {
	if t.LabelSelector == nil || len(t.MatchLabelKeys) == 0 {
		return
	}
	var seen check.Set
	for k := range t.LabelSelector.MatchLabels {
		seen.Add(k)
	}
	for _, e := range t.LabelSelector.MatchExpressions {
		if i := slices.Index(t.MatchLabelKeys, e.Key); i >= 0 && seen.Has(e.Key) {
			c.Index(i)
			c.Invalid("", e.Key, "exists in both matchLabelKeys and labelSelector")
			c.Out()
		}
		seen.Add(e.Key)
	}
}

func (c *Checker) matchKeys(child string, keys []string, s *metav1.LabelSelector) {
	if len(keys) == 0 {
		return
	}
	if s == nil {
		c.Forbidden(child, "must not be specified when labelSelector is not set")
		return
	}
	c.In(child)
	for i, k := range keys {
		c.Index(i)
		c.Qualified("", k)
		c.Out()
	}
	c.Out()
}

func (c *Checker) spreadConstraints() {
	list := c.spec.TopologySpreadConstraints
	if len(list) == 0 {
		return
	}
	c.In("topologySpreadConstraints")
	for i := range list {
		s := &list[i]
		c.Index(i)
		if s.MaxSkew <= 0 {
			c.Invalid("maxSkew", s.MaxSkew, "must be greater than zero")
		}
		if s.TopologyKey == "" {
			c.Required("topologyKey", "can not be empty")
		}
		if w := s.WhenUnsatisfiable; w != corev1.DoNotSchedule && w != corev1.ScheduleAnyway {
			check.NotSupported(c.List, "whenUnsatisfiable", w, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		}
		if slices.ContainsFunc(list[i+1:], func(o corev1.TopologySpreadConstraint) bool {
			return o.TopologyKey == s.TopologyKey && o.WhenUnsatisfiable == s.WhenUnsatisfiable
		}) {
			c.Duplicate("{topologyKey, whenUnsatisfiable}", fmt.Sprintf("{%v, %v}", s.TopologyKey, s.WhenUnsatisfiable))
		}
		if d := s.MinDomains; d != nil {
			if *d <= 0 {
				c.Invalid("minDomains", *d, "must be greater than zero")
			}
			if s.WhenUnsatisfiable != corev1.DoNotSchedule {
				c.Invalid("minDomains", *d, fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s",
					corev1.DoNotSchedule, s.WhenUnsatisfiable))
			}
		}
		check.Pointer(c.List, "nodeAffinityPolicy", s.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor,
			corev1.NodeInclusionPolicyIgnore)
		check.Pointer(c.List, "nodeTaintsPolicy", s.NodeTaintsPolicy, corev1.NodeInclusionPolicyHonor,
			corev1.NodeInclusionPolicyIgnore)
		c.spreadKeys(s)
		c.Selector("labelSelector", s.LabelSelector)
		c.Out()
	}
	c.Out()
}

// spreadKeys checks matchLabelKeys of a spread constraint; as in keysTwice the selector holds one requirement for each.
func (c *Checker) spreadKeys(s *corev1.TopologySpreadConstraint) {
	if len(s.MatchLabelKeys) == 0 {
		return
	}
	c.matchKeys("matchLabelKeys", s.MatchLabelKeys, s.LabelSelector)
	if s.LabelSelector == nil {
		return
	}
	c.In("matchLabelKeys")
	for i, k := range s.MatchLabelKeys {
		n := 0
		for _, e := range s.LabelSelector.MatchExpressions {
			if e.Key == k {
				n++
			}
		}
		merged := 0
		if c.meta != nil {
			if _, ok := c.meta.Labels[k]; ok {
				merged = 1
			}
		}
		if _, ok := s.LabelSelector.MatchLabels[k]; ok || n > merged {
			c.Index(i)
			c.Invalid("", k, "exists in both matchLabelKeys and labelSelector")
			c.Out()
		}
	}
	c.Out()
}
