// SPDX-License-Identifier: Apache-2.0

// Package admissionregistration describes the kinds of
// admissionregistration.k8s.io/v1: webhook configurations, and admission
// policies with their bindings. The registry lists them and admission reads
// them. Nothing here calls a webhook or evaluates an expression; expressions
// are only checked for being well-formed and typed.
package admissionregistration

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
)

func names(k, resource, singular string) kind.Names {
	gv := admissionv1.SchemeGroupVersion
	return kind.Names{
		Group:      gv.Group,
		Version:    gv.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		Categories: []string{"api-extensions"},
	}
}

// The defaults that webhooks and policies share.
const (
	defaultTimeout = 10  // seconds
	defaultPort    = 443 // of a webhook's service
)

func defaultRules(rules []admissionv1.RuleWithOperations) {
	for i := range rules {
		kind.Fill(&rules[i].Scope, admissionv1.AllScopes)
	}
}

func defaultClient(c *admissionv1.WebhookClientConfig) {
	if c.Service != nil {
		kind.Fill(&c.Service.Port, defaultPort)
	}
}

func defaultMatch(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	kind.Fill(&m.MatchPolicy, admissionv1.Equivalent)
	kind.Fill(&m.NamespaceSelector, metav1.LabelSelector{})
	kind.Fill(&m.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			kind.Fill(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}

// run makes a list at the root, lets f fill it and returns what was found.
func run(f func(l *check.List)) field.ErrorList {
	l := check.At(nil)
	f(l)
	return l.Errors()
}

// keepGeneration gives obj the generation of old, and the next one when what it counts has changed.
func keepGeneration(obj, old kind.Object, now, before any) {
	obj.SetGeneration(old.GetGeneration())
	if !equality.Semantic.DeepEqual(now, before) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}
