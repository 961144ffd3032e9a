// SPDX-License-Identifier: Apache-2.0

// Package policy describes the kinds of policy/v1. Evictions, which are asked
// of pods and not stored, are the server's own.
package policy

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
)

type budget = policyv1.PodDisruptionBudget

// PodDisruptionBudget describes policy/v1 PodDisruptionBudget.
func PodDisruptionBudget() *kind.Kind {
	gv := policyv1.SchemeGroupVersion
	return kind.Spec[*budget]{
		Names: kind.Names{
			Group:      gv.Group,
			Version:    gv.Version,
			Kind:       "PodDisruptionBudget",
			Resource:   "poddisruptionbudgets",
			Singular:   "poddisruptionbudget",
			ShortNames: []string{"pdb"},
			Namespaced: true,
		},
		New:     func() *budget { return &budget{} },
		NewList: func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} },
		PrepareCreate: func(b *budget) {
			b.Generation = 1
			b.Status = policyv1.PodDisruptionBudgetStatus{}
		},
		PrepareUpdate: func(b, old *budget) {
			b.Status = old.Status
			b.Generation = old.Generation
			if !equality.Semantic.DeepEqual(b.Spec, old.Spec) {
				b.Generation++
			}
		},
		Validate: validateBudget,
		MetaLast: true,
		// Two writers must not overwrite each other unseen.
		NoUnconditionalUpdate: true,
		ValidateUpdate:        func(b, _ *budget) field.ErrorList { return validateBudget(b) },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Min Available", Type: "string", Description: "The minimum number of pods that must be available."},
			{
				Name:        "Max Unavailable",
				Type:        "string",
				Description: "The maximum number of pods that may be unavailable.",
			},
			{
				Name:        "Allowed Disruptions",
				Type:        "integer",
				Description: "Calculated number of pods that may be disrupted at this time.",
			},
			kind.AgeColumn,
		},
		Row: func(b *budget) []any {
			return []any{
				b.Name, orNone(b.Spec.MinAvailable), orNone(b.Spec.MaxUnavailable), int64(b.Status.DisruptionsAllowed),
				kind.Age(b.CreationTimestamp),
			}
		},
		Status: &kind.Sub[*budget]{
			PrepareUpdate:  func(b, old *budget) { b.Spec = old.Spec },
			ValidateUpdate: func(b, _ *budget) field.ErrorList { return validateBudgetStatus(&b.Status) },
		},
	}.Erase()
}

func orNone(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

func validateBudget(b *budget) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	s := &b.Spec
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		errs.Invalid("", *s, "minAvailable and maxUnavailable cannot be both set")
	}
	amount(errs, "minAvailable", s.MinAvailable)
	amount(errs, "maxUnavailable", s.MaxUnavailable)
	errs.Add(metavalidation.ValidateLabelSelector(s.Selector, metavalidation.LabelSelectorValidationOptions{},
		errs.Path("selector"))...)
	if p := s.UnhealthyPodEvictionPolicy; p != nil {
		check.Pointer(errs, "unhealthyPodEvictionPolicy", p, policyv1.AlwaysAllow, policyv1.IfHealthyBudget)
	}
	return errs.Errors()
}

// amount wants a number of pods or a share of them.
func amount(errs *check.List, child string, intOrString *intstr.IntOrString) {
	switch {
	case intOrString == nil:
	case intOrString.Type == intstr.Int:
		errs.NotNegative(child, int64(intOrString.IntVal))
	default:
		msgs := validation.IsValidPercent(intOrString.StrVal)
		for _, msg := range msgs {
			errs.Invalid(child, *intOrString, msg)
		}
		if n, err := intstr.GetScaledValueFromIntOrPercent(intOrString, 100, false); len(msgs) == 0 && err == nil &&
			n > 100 {
			errs.Invalid(child, *intOrString, "must not be greater than 100%")
		}
	}
}

func validateBudgetStatus(s *policyv1.PodDisruptionBudgetStatus) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	errs.Add(metavalidation.ValidateConditions(s.Conditions, errs.Path("conditions"))...)
	for _, f := range []struct {
		name string
		n    int32
	}{
		{"disruptionsAllowed", s.DisruptionsAllowed},
		{"currentHealthy", s.CurrentHealthy},
		{"desiredHealthy", s.DesiredHealthy},
		{"expectedPods", s.ExpectedPods},
	} {
		errs.NotNegative(f.name, int64(f.n))
	}
	return errs.Errors()
}
