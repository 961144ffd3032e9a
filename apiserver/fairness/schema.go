// SPDX-License-Identifier: Apache-2.0

package fairness

import (
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// schema is a compiled FlowSchema.
type schema struct{ spec *flowcontrolv1.FlowSchema }

// matches reports whether a rule of the schema matches r.
func (s *schema) matches(r *Request) bool {
	return slices.ContainsFunc(s.spec.Spec.Rules, func(rule flowcontrolv1.PolicyRulesWithSubjects) bool {
		if !slices.ContainsFunc(rule.Subjects, r.matchesSubject) {
			return false
		}
		if r.IsResource {
			return slices.ContainsFunc(rule.ResourceRules, r.matchesResourceRule)
		}
		return slices.ContainsFunc(rule.NonResourceRules, r.matchesNonResourceRule)
	})
}

func (r *Request) matchesSubject(subject flowcontrolv1.Subject) bool {
	switch subject.Kind {
	case flowcontrolv1.SubjectKindUser:
		return subject.User != nil && (subject.User.Name == "*" || subject.User.Name == r.User)
	case flowcontrolv1.SubjectKindGroup:
		return subject.Group != nil && (subject.Group.Name == "*" || slices.Contains(r.Groups, subject.Group.Name))
	case flowcontrolv1.SubjectKindServiceAccount:
		if subject.ServiceAccount == nil {
			return false
		}
		ns, name, ok := strings.Cut(strings.TrimPrefix(r.User, "system:serviceaccount:"), ":")
		if !ok || !strings.HasPrefix(r.User, "system:serviceaccount:") || ns != subject.ServiceAccount.Namespace {
			return false
		}
		return subject.ServiceAccount.Name == "*" || subject.ServiceAccount.Name == name
	}
	return false
}

func containsOrWildcard(list []string, want string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, want)
}

func (r *Request) matchesResourceRule(rule flowcontrolv1.ResourcePolicyRule) bool {
	full := r.Resource
	if r.Subresource != "" {
		full += "/" + r.Subresource
	}
	if !containsOrWildcard(rule.Verbs, r.Verb) || !containsOrWildcard(rule.APIGroups, r.Group) ||
		!containsOrWildcard(rule.Resources, full) {
		return false
	}
	if r.Namespace == "" {
		return rule.ClusterScope
	}
	return containsOrWildcard(rule.Namespaces, r.Namespace)
}

func (r *Request) matchesNonResourceRule(rule flowcontrolv1.NonResourcePolicyRule) bool {
	return containsOrWildcard(rule.Verbs, r.Verb) && slices.ContainsFunc(rule.NonResourceURLs, func(u string) bool {
		before, star := strings.CutSuffix(u, "*")
		return u == r.Path || star && strings.HasPrefix(r.Path, before)
	})
}
