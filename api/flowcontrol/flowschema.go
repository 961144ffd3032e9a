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

func schemaRow(flowSchema *flowv1.FlowSchema) []any {
	missing := "?"
	method := "<none>"
	for _, c := range flowSchema.Status.Conditions {
		if c.Type == flowv1.FlowSchemaConditionDangling {
			missing = string(c.Status)
			break
		}
	}
	if m := flowSchema.Spec.DistinguisherMethod; m != nil {
		method = string(m.Type)
	}
	return []any{flowSchema.Name, flowSchema.Spec.PriorityLevelConfiguration.Name, int64(
		flowSchema.Spec.MatchingPrecedence), method, kind.Age(
		flowSchema.CreationTimestamp), missing}
}

func validateSchema(flowSchema *flowv1.FlowSchema) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(flowSchema)...)
	errs.Within("spec", func() { validateSchemaSpec(errs, flowSchema) })
	for _, fixed := range MandatoryFlowSchemas() {
		if fixed.Name == flowSchema.Name && !equality.Semantic.DeepEqual(fixed.Spec, flowSchema.Spec) {
			errs.Invalid("spec", flowSchema.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value",
				flowSchema.Name))
		}
	}
	var seen check.Set
	errs.Within("status", func() {
		check.Each(errs, "conditions", flowSchema.Status.Conditions, func(_ int, c *flowv1.FlowSchemaCondition) {
			validateConditionType(errs, &seen, string(c.Type))
		})
	})
	return errs.Errors()
}

func validateConditionType(l *check.List, seen *check.Set, t string) {
	if !seen.Add(t) {
		l.Duplicate("type", t)
	}
	check.Needs(l, "type", t)
}

func validateSchemaSpec(errs *check.List, flowSchema *flowv1.FlowSchema) {
	const precedence = "matchingPrecedence"
	switch p := flowSchema.Spec.MatchingPrecedence; {
	case p <= 0:
		errs.Invalid(precedence, p, "must be a positive value")
	case p > flowv1.FlowSchemaMaxMatchingPrecedence:
		errs.Invalid(precedence, p, fmt.Sprintf("must not be greater than %v", flowv1.FlowSchemaMaxMatchingPrecedence))
	case p == 1 && flowSchema.Name != flowv1.FlowSchemaNameExempt:
		errs.Invalid(precedence, p, "only the schema named 'exempt' may have matchingPrecedence 1")
	}
	if m := flowSchema.Spec.DistinguisherMethod; m != nil {
		errs.Within("distinguisherMethod", func() {
			if m.Type != flowv1.FlowDistinguisherMethodByUserType &&
				m.Type != flowv1.FlowDistinguisherMethodByNamespaceType {
				check.NotSupported(errs, "type", m, flowv1.FlowDistinguisherMethodByNamespaceType,
					flowv1.FlowDistinguisherMethodByUserType)
			}
		})
	}
	errs.Within("priorityLevelConfiguration", func() {
		if name := flowSchema.Spec.PriorityLevelConfiguration.Name; name == "" {
			errs.Required("name", "must reference a priority level")
		} else {
			errs.Subdomain("name", name)
		}
	})
	check.Each(errs, "rules", flowSchema.Spec.Rules, func(_ int, r *flowv1.PolicyRulesWithSubjects) {
		validateRules(errs, r)
	})
}

func validateRules(errs *check.List, subjects *flowv1.PolicyRulesWithSubjects) {
	if len(subjects.Subjects) == 0 {
		errs.Required("subjects", "subjects must contain at least one value")
	}
	check.Each(errs, "subjects", subjects.Subjects, func(_ int, s *flowv1.Subject) { validateSubject(errs, s) })
	if len(subjects.ResourceRules)+len(subjects.NonResourceRules) == 0 {
		errs.Required("", "at least one of resourceRules and nonResourceRules has to be non-empty")
	}
	check.Each(errs, "resourceRules", subjects.ResourceRules, func(_ int, rule *flowv1.ResourcePolicyRule) {
		validateResourceRule(errs, rule)
	})
	check.Each(errs, "nonResourceRules", subjects.NonResourceRules, func(_ int, rule *flowv1.NonResourcePolicyRule) {
		validateURLRule(errs, rule)
	})
}

func validateSubject(errs *check.List, subject *flowv1.Subject) {
	kinds := []flowv1.SubjectKind{flowv1.SubjectKindGroup, flowv1.SubjectKindServiceAccount, flowv1.SubjectKindUser}
	if !slices.Contains(kinds, subject.Kind) {
		check.NotSupported(errs, "kind", subject.Kind, kinds...)
		return
	}
	type part struct {
		kind    flowv1.SubjectKind
		child   string
		present bool
		check   func()
	}
	parts := []part{
		{flowv1.SubjectKindServiceAccount, "serviceAccount", subject.ServiceAccount != nil, func() {
			validateAccount(errs, subject.ServiceAccount)
		}},
		{flowv1.SubjectKindUser, "user", subject.User != nil, func() { required(errs, "name", subject.User.Name) }},
		{flowv1.SubjectKindGroup, "group", subject.Group != nil, func() { required(errs, "name", subject.Group.Name) }},
	}
	for _, f := range parts {
		switch {
		case subject.Kind == f.kind && !f.present:
			errs.Required(f.child, fmt.Sprintf("%s is required when subject kind is '%s'", f.child, f.kind))
		case subject.Kind == f.kind:
			errs.Within(f.child, f.check)
		}
	}
	for _, f := range parts {
		if subject.Kind != f.kind && f.present {
			errs.Forbidden(f.child, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", f.child, f.kind))
		}
	}
}

func required(l *check.List, child, v string) {
	if v == "" {
		l.Required(child, "")
	}
}

func validateAccount(errs *check.List, subject *flowv1.ServiceAccountSubject) {
	switch subject.Name {
	case "":
		errs.Required("name", "")
	case flowv1.NameAll:
	default:
		errs.Name("name", subject.Name, apivalidation.ValidateServiceAccountName)
	}
	if subject.Namespace == "" {
		errs.Required("namespace", "must specify namespace for service account")
	} else {
		errs.Name("namespace", subject.Namespace, apivalidation.ValidateNamespaceName)
	}
}

// verbs are what a rule may name apart from "*", in the order messages print them. Kubernetes wants them of rules about
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

// alone rejects other entries next to "*".
func alone(l *check.List, child string, list []string, what string) {
	if len(list) > 1 && slices.Contains(list, "*") {
		l.Invalid(child, list, "if '*' is present, must not specify other "+what)
	}
}

func validateResourceRule(errs *check.List, rule *flowv1.ResourcePolicyRule) {
	validateVerbs(errs, rule.Verbs)
	if len(rule.APIGroups) == 0 {
		errs.Required("apiGroups", "resource rules must supply at least one api group")
	}
	alone(errs, "apiGroups", rule.APIGroups, "api groups")
	if len(rule.Resources) == 0 {
		errs.Required("resources", "resource rules must supply at least one resource")
	}
	alone(errs, "resources", rule.Resources, "resources")
	switch {
	case len(rule.Namespaces) == 0 && !rule.ClusterScope:
		errs.Required("namespaces", "resource rules that are not cluster scoped must supply at least one namespace")
	case slices.Contains(rule.Namespaces, flowv1.NamespaceEvery):
		alone(errs, "namespaces", rule.Namespaces, "namespaces")
	default:
		check.Each(errs, "namespaces", rule.Namespaces, func(_ int, ns *string) {
			for _, msg := range apivalidation.ValidateNamespaceName(*ns, false) {
				errs.Invalid("", *ns, "each member of this list must be '*' or a DNS-1123 label; "+msg)
			}
		})
	}
}

func validateURLRule(errs *check.List, r *flowv1.NonResourcePolicyRule) {
	validateVerbs(errs, r.Verbs)
	const child = "nonResourceURLs"
	switch {
	case len(r.NonResourceURLs) == 0:
		errs.Required(child, "nonResourceURLs must contain at least one value")
	case slices.Contains(r.NonResourceURLs, flowv1.NonResourceAll):
		alone(errs, child, r.NonResourceURLs, "non-resource URLs")
	default:
		check.Each(errs, child, r.NonResourceURLs, func(_ int, u *string) {
			if msg := wrongURL(*u); msg != "" {
				errs.Invalid("", *u, msg)
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
