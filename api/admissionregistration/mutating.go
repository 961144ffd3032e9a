// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"keelson/api/internal/check"
	"keelson/api/kind"
)

// MutatingAdmissionPolicy describes admissionregistration.k8s.io/v1 MutatingAdmissionPolicy.
func MutatingAdmissionPolicy() *kind.Kind {
	type policy = admissionv1.MutatingAdmissionPolicy
	return kind.Spec[*policy]{
		Names:   names("MutatingAdmissionPolicy", "mutatingadmissionpolicies", "mutatingadmissionpolicy"),
		New:     func() *policy { return &policy{} },
		NewList: func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyList{} },
		Default: func(p *policy) {
			kind.Fill(&p.Spec.FailurePolicy, admissionv1.Fail)
			defaultMatch(p.Spec.MatchConstraints)
		},
		PrepareCreate: func(p *policy) { p.Generation = 1 },
		PrepareUpdate: func(p, old *policy) { keepGeneration(p, old, p.Spec, old.Spec) },
		Validate: func(p *policy) field.ErrorList {
			return append(validateMutating(p, nil), validateReserved(p)...)
		},
		Warnings:              warnReserved[*policy],
		NoUnconditionalUpdate: true,
		ValidateUpdate:        validateMutating,
		Columns: policyColumns("Mutations",
			"Mutation indicates the number of mutations rules defined in this configuration"),
		Row: func(p *policy) []any {
			return []any{
				p.Name, int64(len(p.Spec.Mutations)), paramKind(p.Spec.ParamKind), kind.Age(p.CreationTimestamp),
			}
		},
	}.Erase()
}

func validateMutating(p, old *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
	return run(func(errs *check.List) {
		errs.In("spec")
		spec := &p.Spec
		var before *admissionv1.ValidatingAdmissionPolicySpec
		var stored []string
		if old != nil {
			before = headOf(&old.Spec)
			stored = mutatingExpressions(&old.Spec)
		}
		x := validateHead(errs, headOf(spec), before, stored, patching, func(m *admissionv1.MatchResources) {
			validateChanging(errs, "matchConstraints", m.ResourceRules)
		})
		if len(spec.Mutations) == 0 {
			errs.Required("mutations", "mutations must contain at least one item")
		}
		check.Each(errs, "mutations", spec.Mutations, func(_ int, m *admissionv1.Mutation) {
			validateMutation(errs, m, &x)
		})
		check.OneOf(errs, "reinvocationPolicy", spec.ReinvocationPolicy, reinvocations...)
	})
}

// changing are the operations whose objects can be changed; Kubernetes counts connections among them.
var changing = []admissionv1.OperationType{
	admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Update,
}

// validateChanging: what is deleted cannot be changed. The path that is reported is Kubernetes'.
func validateChanging(l *check.List, child string, rules []admissionv1.NamedRuleWithOperations) {
	for i := range rules {
		for _, op := range rules[i].Operations {
			check.Pointer(l, child+".resourceRules.operations", &op, changing...)
		}
	}
}

// headOf is what a policy has as those that validate have it.
func headOf(s *admissionv1.MutatingAdmissionPolicySpec) *admissionv1.ValidatingAdmissionPolicySpec {
	return &admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy:    s.FailurePolicy,
		ParamKind:        s.ParamKind,
		MatchConstraints: s.MatchConstraints,
		MatchConditions:  s.MatchConditions,
		Variables:        s.Variables,
	}
}

func mutatingExpressions(s *admissionv1.MutatingAdmissionPolicySpec) []string {
	out := policyExpressions(headOf(s))
	for _, m := range s.Mutations {
		if m.ApplyConfiguration != nil {
			out = append(out, m.ApplyConfiguration.Expression)
		}
		if m.JSONPatch != nil {
			out = append(out, m.JSONPatch.Expression)
		}
	}
	return out
}

// patching is what expressions that make patches may use.
var patching = plugincel.OptionalVariableDeclarations{HasAuthorizer: true, HasPatchTypes: true}

func validateMutation(errs *check.List, mutation *admissionv1.Mutation, x *expressions) {
	expression := func(child string, present bool, text string, only admissionv1.PatchType, result *cel.Type) {
		switch {
		case mutation.PatchType == only && !present:
			errs.Required(child, "must be specified when patchType is "+string(only))
		case mutation.PatchType == only && strings.TrimSpace(text) == "":
			errs.Required(child+".expression", "")
		case mutation.PatchType == only:
			errs.Within(child, func() { x.check(errs, "expression", text, text, patching, result) })
		case mutation.PatchType != only && present:
			errs.Invalid(child, "{"+child+"}", "must not be specified when patchType is "+string(mutation.PatchType))
		}
	}
	switch mutation.PatchType {
	case admissionv1.PatchTypeApplyConfiguration, admissionv1.PatchTypeJSONPatch:
		apply := mutation.ApplyConfiguration
		patch := mutation.JSONPatch
		parts := []func(){
			func() {
				expression("applyConfiguration", apply != nil, kind.Value(apply).Expression,
					admissionv1.PatchTypeApplyConfiguration, cel.ObjectType("Object"))
			},
			func() {
				expression("jsonPatch", patch != nil, kind.Value(patch).Expression, admissionv1.PatchTypeJSONPatch,
					cel.ListType(cel.ObjectType("JSONPatch")))
			},
		}
		if mutation.PatchType == admissionv1.PatchTypeJSONPatch { // what must be there comes before what must not
			slices.Reverse(parts)
		}
		for _, part := range parts {
			part()
		}
	default:
		check.OneOf(errs, "patchType", mutation.PatchType, admissionv1.PatchTypeApplyConfiguration,
			admissionv1.PatchTypeJSONPatch)
	}
}

// MutatingAdmissionPolicyBinding describes admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding.
func MutatingAdmissionPolicyBinding() *kind.Kind {
	type binding = admissionv1.MutatingAdmissionPolicyBinding
	return bindingKind(
		names("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", "mutatingadmissionpolicybinding"),
		func() *binding { return &binding{} },
		func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyBindingList{} },
		func(b *binding) bound {
			return bound{b.Spec, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources}
		},
		func(l *check.List, b *binding) {
			check.Needs(l, "policyName", b.Spec.PolicyName)
		},
		func(l *check.List, b *binding) {
			if m := b.Spec.MatchResources; m != nil {
				validateChanging(l, "matchResources", m.ResourceRules)
			}
		})
}

func pathSegment(name string) []string { return content.IsPathSegmentName(name) }
