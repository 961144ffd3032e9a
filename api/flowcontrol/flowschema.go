// SPDX-License-Identifier: Apache-2.0

// Package flowcontrol describes the kinds of flowcontrol.apiserver.k8s.io/v1:
// flow schemas, which sort requests into flows, and priority levels, which
// limit them; and the objects of both kinds that every cluster has. The
// registry lists the kinds, the server creates the objects and its limiter
// reads them. Nothing here looks at a request.
package flowcontrol

import (
	"fmt"
	"slices"
	"strings"

	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const defaultPrecedence = 1000

func names(k, resource, singular string) kind.Names {
	gv := flowv1.SchemeGroupVersion
	return kind.Names{
		Group:    gv.Group,
		Version:  gv.Version,
		Kind:     k,
		Resource: resource,
		Singular: singular,
	}
}

// FlowSchema describes flowcontrol.apiserver.k8s.io/v1 FlowSchema.
func FlowSchema() *kind.Kind {
	return kind.Spec[*flowv1.FlowSchema]{
		Names:   names("FlowSchema", "flowschemas", "flowschema"),
		New:     func() *flowv1.FlowSchema { return &flowv1.FlowSchema{} },
		NewList: func() runtime.Object { return &flowv1.FlowSchemaList{} },
		Default: func(s *flowv1.FlowSchema) {
			if s.Spec.MatchingPrecedence == 0 {
				s.Spec.MatchingPrecedence = defaultPrecedence
			}
		},
		PrepareCreate: func(s *flowv1.FlowSchema) {
			s.Generation = 1
			s.Status = flowv1.FlowSchemaStatus{}
		},
		PrepareUpdate: func(s, old *flowv1.FlowSchema) {
			s.Status = old.Status
			s.Generation = old.Generation
			if !equality.Semantic.DeepEqual(s.Spec, old.Spec) {
				s.Generation++
			}
		},
		Validate:       validateSchema,
		ValidateUpdate: func(s, _ *flowv1.FlowSchema) field.ErrorList { return validateSchema(s) },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "PriorityLevel", Type: "string", Description: "The priority level of the requests that match."},
			{
				Name:        "MatchingPrecedence",
				Type:        "string",
				Description: "Of the schemas that match a request, the one with the lowest number counts.",
			},
			{
				Name:        "DistinguisherMethod",
				Type:        "string",
				Description: "How the requests that match are split into flows.",
			},
			kind.AgeColumn,
			{
				Name:        "MissingPL",
				Type:        "string",
				Description: "references a broken or non-existent PriorityLevelConfiguration",
			},
		},
		Row: schemaRow,
		Status: &kind.Sub[*flowv1.FlowSchema]{
			PrepareUpdate: func(s, old *flowv1.FlowSchema) {
				s.Spec = old.Spec
				meta.KeepAllForStatus(s, old)
			},
			ValidateUpdate: func(s, _ *flowv1.FlowSchema) field.ErrorList { return validateSchema(s) },
		},
	}.Erase()
}

func schemaRow(s *flowv1.FlowSchema) []any {
	missing := "?"
	method := "<none>"
	for _, c := range s.Status.Conditions {
		if c.Type == flowv1.FlowSchemaConditionDangling {
			missing = string(c.Status)
			break
		}
	}
	if m := s.Spec.DistinguisherMethod; m != nil {
		method = string(m.Type)
	}
	return []any{s.Name, s.Spec.PriorityLevelConfiguration.Name, int64(s.Spec.MatchingPrecedence), method, kind.Age(
		s.CreationTimestamp), missing}
}

func validateSchema(s *flowv1.FlowSchema) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(s)...)
	l.Within("spec", func() { validateSchemaSpec(l, s) })
	for _, fixed := range MandatoryFlowSchemas() {
		if fixed.Name == s.Name && !equality.Semantic.DeepEqual(fixed.Spec, s.Spec) {
			l.Invalid("spec", s.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", s.Name))
		}
	}
	var seen check.Set
	l.Within("status", func() {
		check.Each(l, "conditions", s.Status.Conditions, func(_ int, c *flowv1.FlowSchemaCondition) {
			validateConditionType(l, &seen, string(c.Type))
		})
	})
	return l.Errors()
}

func validateConditionType(l *check.List, seen *check.Set, t string) {
	if !seen.Add(t) {
		l.Duplicate("type", t)
	}
	if t == "" {
		l.Required("type", "")
	}
}

func validateSchemaSpec(l *check.List, s *flowv1.FlowSchema) {
	const precedence = "matchingPrecedence"
	switch p := s.Spec.MatchingPrecedence; {
	case p <= 0:
		l.Invalid(precedence, p, "must be a positive value")
	case p > flowv1.FlowSchemaMaxMatchingPrecedence:
		l.Invalid(precedence, p, fmt.Sprintf("must not be greater than %v", flowv1.FlowSchemaMaxMatchingPrecedence))
	case p == 1 && s.Name != flowv1.FlowSchemaNameExempt:
		l.Invalid(precedence, p, "only the schema named 'exempt' may have matchingPrecedence 1")
	}
	if m := s.Spec.DistinguisherMethod; m != nil {
		l.Within("distinguisherMethod", func() {
			if m.Type != flowv1.FlowDistinguisherMethodByUserType &&
				m.Type != flowv1.FlowDistinguisherMethodByNamespaceType {
				check.NotSupported(l, "type", m, flowv1.FlowDistinguisherMethodByNamespaceType,
					flowv1.FlowDistinguisherMethodByUserType)
			}
		})
	}
	l.Within("priorityLevelConfiguration", func() {
		if name := s.Spec.PriorityLevelConfiguration.Name; name == "" {
			l.Required("name", "must reference a priority level")
		} else {
			l.Subdomain("name", name)
		}
	})
	check.Each(l, "rules", s.Spec.Rules, func(_ int, r *flowv1.PolicyRulesWithSubjects) { validateRules(l, r) })
}

func validateRules(l *check.List, r *flowv1.PolicyRulesWithSubjects) {
	if len(r.Subjects) == 0 {
		l.Required("subjects", "subjects must contain at least one value")
	}
	check.Each(l, "subjects", r.Subjects, func(_ int, s *flowv1.Subject) { validateSubject(l, s) })
	if len(r.ResourceRules)+len(r.NonResourceRules) == 0 {
		l.Required("", "at least one of resourceRules and nonResourceRules has to be non-empty")
	}
	check.Each(l, "resourceRules", r.ResourceRules, func(_ int, rule *flowv1.ResourcePolicyRule) {
		validateResourceRule(l, rule)
	})
	check.Each(l, "nonResourceRules", r.NonResourceRules, func(_ int, rule *flowv1.NonResourcePolicyRule) {
		validateURLRule(l, rule)
	})
}

func validateSubject(l *check.List, s *flowv1.Subject) {
	kinds := []flowv1.SubjectKind{flowv1.SubjectKindGroup, flowv1.SubjectKindServiceAccount, flowv1.SubjectKindUser}
	if !slices.Contains(kinds, s.Kind) {
		check.NotSupported(l, "kind", s.Kind, kinds...)
		return
	}
	type part struct {
		kind    flowv1.SubjectKind
		child   string
		present bool
		check   func()
	}
	parts := []part{
		{flowv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil, func() {
			validateAccount(l, s.ServiceAccount)
		}},
		{flowv1.SubjectKindUser, "user", s.User != nil, func() { required(l, "name", s.User.Name) }},
		{flowv1.SubjectKindGroup, "group", s.Group != nil, func() { required(l, "name", s.Group.Name) }},
	}
	for _, f := range parts {
		switch {
		case s.Kind == f.kind && !f.present:
			l.Required(f.child, fmt.Sprintf("%s is required when subject kind is '%s'", f.child, f.kind))
		case s.Kind == f.kind:
			l.Within(f.child, f.check)
		}
	}
	for _, f := range parts {
		if s.Kind != f.kind && f.present {
			l.Forbidden(f.child, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", f.child, f.kind))
		}
	}
}

func required(l *check.List, child, v string) {
	if v == "" {
		l.Required(child, "")
	}
}

func validateAccount(l *check.List, a *flowv1.ServiceAccountSubject) {
	switch a.Name {
	case "":
		l.Required("name", "")
	case flowv1.NameAll:
	default:
		l.Name("name", a.Name, apivalidation.ValidateServiceAccountName)
	}
	if a.Namespace == "" {
		l.Required("namespace", "must specify namespace for service account")
	} else {
		l.Name("namespace", a.Namespace, apivalidation.ValidateNamespaceName)
	}
}

// verbs are what a rule may name beside "*", in the order messages print them. Kubernetes wants them of rules about
// paths too.
var verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}

func validateVerbs(l *check.List, list []string) {
	switch {
	case len(list) == 0:
		l.Required("verbs", "verbs must contain at least one value")
	case slices.Contains(list, flowv1.VerbAll):
		alone(l, "verbs", list, "verbs")
	case slices.ContainsFunc(list, func(v string) bool { return !slices.Contains(verbs, v) }):
		check.NotSupported(l, "verbs", list, verbs...)
	}
}

// alone wants no entry beside "*".
func alone(l *check.List, child string, list []string, what string) {
	if len(list) > 1 && slices.Contains(list, "*") {
		l.Invalid(child, list, "if '*' is present, must not specify other "+what)
	}
}

func validateResourceRule(l *check.List, r *flowv1.ResourcePolicyRule) {
	validateVerbs(l, r.Verbs)
	if len(r.APIGroups) == 0 {
		l.Required("apiGroups", "resource rules must supply at least one api group")
	}
	alone(l, "apiGroups", r.APIGroups, "api groups")
	if len(r.Resources) == 0 {
		l.Required("resources", "resource rules must supply at least one resource")
	}
	alone(l, "resources", r.Resources, "resources")
	switch {
	case len(r.Namespaces) == 0 && !r.ClusterScope:
		l.Required("namespaces", "resource rules that are not cluster scoped must supply at least one namespace")
	case slices.Contains(r.Namespaces, flowv1.NamespaceEvery):
		alone(l, "namespaces", r.Namespaces, "namespaces")
	default:
		check.Each(l, "namespaces", r.Namespaces, func(_ int, ns *string) {
			for _, msg := range apivalidation.ValidateNamespaceName(*ns, false) {
				l.Invalid("", *ns, "each member of this list must be '*' or a DNS-1123 label; "+msg)
			}
		})
	}
}

func validateURLRule(l *check.List, r *flowv1.NonResourcePolicyRule) {
	validateVerbs(l, r.Verbs)
	const child = "nonResourceURLs"
	switch {
	case len(r.NonResourceURLs) == 0:
		l.Required(child, "nonResourceURLs must contain at least one value")
	case slices.Contains(r.NonResourceURLs, flowv1.NonResourceAll):
		alone(l, child, r.NonResourceURLs, "non-resource URLs")
	default:
		check.Each(l, child, r.NonResourceURLs, func(_ int, u *string) {
			if msg := wrongURL(*u); msg != "" {
				l.Invalid("", *u, msg)
			}
		})
	}
}

func wrongURL(u string) string {
	switch stars := strings.Count(u, "*"); {
	case u == "":
		return "must not be empty"
	case u == "/":
		return ""
	case u[0] != '/':
		return "must start with slash"
	case strings.Contains(u, " "):
		return "must not contain white-space"
	case strings.Contains(u, "//"):
		return "must not contain double slash"
	case stars > 1 || stars == 1 && !strings.HasSuffix(u, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}
