// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	maxAnnotations          = 20
	maxAnnotationExpression = 5 * 1024 // bytes
)

// ValidatingAdmissionPolicy describes admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy.
func ValidatingAdmissionPolicy() *kind.Kind {
	type policy = admissionv1.ValidatingAdmissionPolicy
	return kind.Spec[*policy]{
		Names:   names("ValidatingAdmissionPolicy", "validatingadmissionpolicies", "validatingadmissionpolicy"),
		New:     func() *policy { return &policy{} },
		NewList: func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyList{} },
		Default: func(p *policy) {
			kind.Fill(&p.Spec.FailurePolicy, admissionv1.Fail)
			defaultMatch(p.Spec.MatchConstraints)
		},
		PrepareCreate: func(p *policy) {
			p.Generation = 1
			p.Status = admissionv1.ValidatingAdmissionPolicyStatus{}
		},
		PrepareUpdate: func(p, old *policy) {
			p.Status = old.Status
			keepGeneration(p, old, p.Spec, old.Spec)
		},
		Validate: func(p *policy) field.ErrorList {
			return append(validatePolicy(p, nil), validateReserved(p)...)
		},
		Warnings:              warnReserved[*policy],
		NoUnconditionalUpdate: true,
		ValidateUpdate:        validatePolicy,
		Columns: policyColumns("Validations",
			"Validations indicates the number of validation rules defined in this configuration"),
		Row: func(p *policy) []any {
			return []any{
				p.Name, int64(len(p.Spec.Validations)), paramKind(p.Spec.ParamKind), kind.Age(p.CreationTimestamp),
			}
		},
		Status: &kind.Sub[*policy]{
			PrepareUpdate: func(p, old *policy) {
				p.Spec = old.Spec
				meta.KeepForStatus(p, old)
			},
			ValidateUpdate: func(p, _ *policy) field.ErrorList { return validatePolicyStatus(&p.Status) },
			Warnings:       func(p *policy) []string { return warnReserved(p, nil) },
		},
	}.Erase()
}

func policyColumns(counted, description string) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.NameColumn,
		{Name: counted, Type: "integer", Description: description},
		{
			Name:        "ParamKind",
			Type:        "string",
			Description: "ParamKind specifies the kind of resources used to parameterize this policy",
		},
		kind.AgeColumn,
	}
}

func paramKind(k *admissionv1.ParamKind) string {
	if k == nil {
		return "<unset>"
	}
	return k.APIVersion + "/" + k.Kind
}

func validatePolicy(policy, old *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	return run(func(errs *check.List) {
		errs.In("spec")
		spec := &policy.Spec
		var before *admissionv1.ValidatingAdmissionPolicySpec
		var stored []string
		if old != nil {
			before = &old.Spec
			stored = policyExpressions(before)
		}
		x := validateHead(errs, spec, before, stored, everything, func(*admissionv1.MatchResources) {})
		if len(spec.Validations)+len(spec.AuditAnnotations) == 0 {
			const none = "validations or auditAnnotations must contain at least one item"
			errs.Required("validations", none)
			errs.Required("auditAnnotations", none)
			return
		}
		check.Each(errs, "validations", spec.Validations, func(_ int, v *admissionv1.Validation) {
			validateValidation(errs, v, &x)
		})
		validateAnnotations(errs, policy.Name, spec.AuditAnnotations, &x)
	})
}

func policyExpressions(spec *admissionv1.ValidatingAdmissionPolicySpec) []string {
	var out []string
	for _, c := range spec.MatchConditions {
		out = append(out, c.Expression)
	}
	for _, v := range spec.Validations {
		out = append(out, v.Expression, v.MessageExpression)
	}
	for _, a := range spec.AuditAnnotations {
		out = append(out, a.ValueExpression)
	}
	for _, v := range spec.Variables {
		out = append(out, v.Expression)
	}
	return out
}

// validateHead checks what both kinds of policies have, and returns what checks their other expressions. constraints
// checks more of the constraints; stored are the expressions that old had, which is nil for a new policy.
func validateHead(
	errs *check.List, spec, old *admissionv1.ValidatingAdmissionPolicySpec, stored []string,
	may plugincel.OptionalVariableDeclarations, constraints func(*admissionv1.MatchResources),
) expressions {
	validateFailurePolicy(errs, spec.FailurePolicy)
	x := expressions{params: spec.ParamKind != nil, stored: stored}
	validateParamKind(errs, spec.ParamKind)
	validateConstraints(errs, spec.MatchConstraints)
	if spec.MatchConstraints != nil {
		constraints(spec.MatchConstraints)
	}
	if old == nil || !equality.Semantic.DeepEqual(spec.ParamKind, old.ParamKind) ||
		!equality.Semantic.DeepEqual(spec.MatchConditions, old.MatchConditions) {
		validateConditions(errs, spec.MatchConditions, x)
	}
	validateVariables(errs, spec.Variables, &x, may)
	return x
}

func validateFailurePolicy(l *check.List, p *admissionv1.FailurePolicyType) {
	if p == nil {
		l.Required("failurePolicy", "")
	}
	check.Pointer(l, "failurePolicy", p, failurePolicies...)
}

// validateConstraints requires at least one rule: rules determine the type of the objects.
func validateConstraints(l *check.List, m *admissionv1.MatchResources) {
	const child = "matchConstraints"
	if m == nil {
		l.Required(child, "")
		return
	}
	l.Within(child, func() {
		validateMatch(l, m)
		if len(m.ResourceRules) == 0 {
			l.Required("resourceRules", "")
		}
	})
}

func validateParamKind(l *check.List, k *admissionv1.ParamKind) {
	if k == nil {
		return
	}
	l.In("paramKind")
	defer l.Out()
	validateParamVersion(l, k.APIVersion)
	if k.Kind == "" {
		l.Required("kind", "")
	} else if msgs := validation.IsDNS1035Label(strings.ToLower(k.Kind)); len(msgs) > 0 {
		l.Invalid("kind", k.Kind, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ","))
	}
}

func validateParamVersion(errs *check.List, version string) {
	const child = "apiVersion"
	if version == "" {
		errs.Required(child, "")
		return
	}
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		errs.Invalid(child, version, err.Error())
		return
	}
	if gv.Group != "" {
		if msgs := validation.IsDNS1123Subdomain(gv.Group); len(msgs) > 0 {
			errs.Invalid(child, gv.Group, strings.Join(msgs, ","))
		}
	}
	if gv.Version == "" {
		errs.Invalid(child, version, "version must be specified")
	} else if msgs := validation.IsDNS1035Label(gv.Version); len(msgs) > 0 {
		errs.Invalid(child, gv.Version, strings.Join(msgs, ","))
	}
}

func validateValidation(errs *check.List, v *admissionv1.Validation, x *expressions) {
	if strings.TrimSpace(v.Expression) == "" {
		errs.Required("expression", "expression is not specified")
	}
	x.check(errs, "expression", v.Expression, v.Expression, everything, cel.BoolType)
	x.check(errs, "messageExpression", v.MessageExpression, v.MessageExpression,
		plugincel.OptionalVariableDeclarations{},
		cel.StringType)
	if v.MessageExpression != "" && strings.TrimSpace(v.MessageExpression) == "" {
		errs.Invalid("messageExpression", v.MessageExpression, "must be non-empty if specified")
	}
	switch message := strings.TrimSpace(v.Message); {
	case v.Message != "" && message == "":
		errs.Invalid("message", v.Message, "must be non-empty if specified")
	case strings.ContainsAny(message, "\n\r"):
		errs.Invalid("message", v.Message, "must not contain line breaks")
	}
	check.Pointer(errs, "reason", v.Reason, metav1.StatusReasonForbidden, metav1.StatusReasonInvalid,
		metav1.StatusReasonRequestEntityTooLarge)
}

func validateAnnotations(errs *check.List, policy string, list []admissionv1.AuditAnnotation, x *expressions) {
	const child = "auditAnnotations"
	if len(list) > maxAnnotations {
		errs.Invalid(child, list, fmt.Sprintf("must not have more than %d auditAnnotations", maxAnnotations))
	}
	var seen check.Set
	check.Each(errs, child, list, func(_ int, annotation *admissionv1.AuditAnnotation) {
		if policy == "" {
			errs.Invalid("key", annotation.Key, "requires metadata.name be non-empty")
		} else {
			errs.Qualified("key", policy+"/"+annotation.Key)
		}
		switch n := len(strings.TrimSpace(annotation.ValueExpression)); {
		case n == 0:
			errs.Required("valueExpression", "valueExpression is not specified")
		case n > maxAnnotationExpression:
			errs.Required("valueExpression", fmt.Sprintf("must not exceed %d bytes in length", maxAnnotationExpression))
		default:
			x.check(errs, "valueExpression", strings.TrimSpace(annotation.ValueExpression), annotation.ValueExpression,
				everything,
				cel.StringType, cel.NullType)
		}
		if !seen.Add(annotation.Key) {
			errs.Duplicate("key", annotation.Key)
		}
	})
}

func validatePolicyStatus(status *admissionv1.ValidatingAdmissionPolicyStatus) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	if status.TypeChecking != nil {
		errs.In("typeChecking")
		check.Each(errs, "expressionWarnings", status.TypeChecking.ExpressionWarnings, func(
			_ int, w *admissionv1.ExpressionWarning,
		) {
			check.Needs(errs, "warning", w.Warning)
			check.Needs(errs, "fieldRef", strings.TrimSpace(w.FieldRef))
		})
		errs.Out()
	}
	errs.Add(metavalidation.ValidateConditions(status.Conditions, errs.Path("conditions"))...)
	return errs.Errors()
}

// ValidatingAdmissionPolicyBinding describes admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding.
func ValidatingAdmissionPolicyBinding() *kind.Kind {
	type binding = admissionv1.ValidatingAdmissionPolicyBinding
	return bindingKind(
		names("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings",
			"validatingadmissionpolicybinding"),
		func() *binding { return &binding{} },
		func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyBindingList{} },
		func(b *binding) bound {
			return bound{b.Spec, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources}
		},
		func(l *check.List, b *binding) {
			if b.Spec.PolicyName == "" {
				l.Missing("policyName")
			}
		},
		func(l *check.List, b *binding) { validateActions(l, b.Spec.ValidationActions) })
}

// bound is what both kinds of bindings have.
type bound struct {
	spec   any // all of it
	policy string
	param  *admissionv1.ParamRef
	match  *admissionv1.MatchResources
}

// bindingKind describes a kind of bindings. first and last check what the kinds differ in.
func bindingKind[B kind.Object](
	names kind.Names, fresh func() B, list func() runtime.Object, of func(B) bound, first, last func(*check.List, B),
) *kind.Kind {
	validate := func(b B) field.ErrorList {
		return run(func(l *check.List) {
			l.In("spec")
			first(l, b)
			validateBound(l, of(b))
			last(l, b)
		})
	}
	return kind.Spec[B]{
		Names:                 names,
		New:                   fresh,
		NewList:               list,
		Default:               func(b B) { defaultMatch(of(b).match) },
		PrepareCreate:         func(b B) { b.SetGeneration(1) },
		PrepareUpdate:         func(b, old B) { keepGeneration(b, old, of(b).spec, of(old).spec) },
		Validate:              func(b B) field.ErrorList { return append(validate(b), validateReserved(b)...) },
		Warnings:              warnReserved[B],
		NoUnconditionalUpdate: true,
		ValidateUpdate:        func(b, _ B) field.ErrorList { return validate(b) },
		Columns:               bindingColumns,
		Row: func(b B) []any {
			return []any{b.GetName(), of(b).policy, paramRef(of(b).param), kind.Age(b.GetCreationTimestamp())}
		},
	}.Erase()
}

var bindingColumns = []metav1.TableColumnDefinition{
	kind.NameColumn,
	{
		Name:        "PolicyName",
		Type:        "string",
		Description: "PolicyName indicates the policy definition which the policy binding binded to",
	},
	{
		Name:        "ParamRef",
		Type:        "string",
		Description: "ParamRef indicates the param resource which sets the configuration param",
	},
	kind.AgeColumn,
}

// paramRef is the parameter as printed: "<namespace>/<name>", with a star for any namespace, or the selector.
func paramRef(p *admissionv1.ParamRef) string {
	switch {
	case p == nil:
		return "<unset>"
	case p.Name == "":
		if p.Selector == nil {
			return "<unset>"
		}
		return p.Selector.String()
	case p.Namespace == "":
		return "*/" + p.Name
	}
	return p.Namespace + "/" + p.Name
}

func validateBound(l *check.List, b bound) {
	if b.policy != "" {
		l.Subdomain("policyName", b.policy)
	}
	if b.param != nil {
		l.Within("paramRef", func() { validateParamRef(l, b.param) })
	}
	if b.match != nil {
		l.Within("matchResources", func() { validateMatch(l, b.match) })
	}
}

func validateParamRef(errs *check.List, paramRef *admissionv1.ParamRef) {
	const exclusive = "name and selector are mutually exclusive"
	if paramRef.Name != "" {
		for _, msg := range pathSegment(paramRef.Name) {
			errs.Invalid("name", paramRef.Name, msg)
		}
		if paramRef.Selector != nil {
			errs.Forbidden("name", exclusive)
		}
	}
	errs.Selector("selector", paramRef.Selector)
	if paramRef.Name != "" && paramRef.Selector != nil {
		errs.Forbidden("selector", exclusive)
	}
	if paramRef.Name == "" && paramRef.Selector == nil {
		errs.Required("", "one of name or selector must be specified")
	}
	if kind.Value(paramRef.ParameterNotFoundAction) == "" {
		errs.Required("parameterNotFoundAction", "")
		return
	}
	check.Pointer(errs, "parameterNotFoundAction", paramRef.ParameterNotFoundAction, admissionv1.DenyAction,
		admissionv1.AllowAction)
}

var actions = []admissionv1.ValidationAction{admissionv1.Audit, admissionv1.Deny, admissionv1.Warn}

func validateActions(errs *check.List, list []admissionv1.ValidationAction) {
	const child = "validationActions"
	var seen check.Set
	check.Each(errs, child, list, func(_ int, a *admissionv1.ValidationAction) {
		if !slices.Contains(actions, *a) {
			check.NotSupported(errs, "", *a, actions...)
		}
		if !seen.Add(string(*a)) {
			errs.Duplicate("", *a)
		}
	})
	if seen.Has(string(admissionv1.Deny)) && seen.Has(string(admissionv1.Warn)) {
		errs.Invalid(child, list, "must not contain both Deny and Warn (repeating the same validation failure "+
			"information in the API response and headers serves no purpose)")
	}
	if len(list) == 0 {
		errs.Missing(child)
	}
}
