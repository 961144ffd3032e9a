// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
	"keelson/api/resources"
)

// ResourceQuota describes v1 ResourceQuota.
func ResourceQuota() *kind.Kind {
	return kind.Spec[*corev1.ResourceQuota]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "ResourceQuota",
			Resource:   "resourcequotas",
			Singular:   "resourcequota",
			ShortNames: []string{"quota"},
			Namespaced: true,
		},
		New:            func() *corev1.ResourceQuota { return &corev1.ResourceQuota{} },
		NewList:        func() runtime.Object { return &corev1.ResourceQuotaList{} },
		PrepareCreate:  func(q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} },
		PrepareUpdate:  func(q, old *corev1.ResourceQuota) { q.Status = old.Status },
		Validate:       validateQuota,
		ValidateUpdate: validateQuotaUpdate,
		Warnings:       quotaWarnings,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{
				Name:        "Request",
				Type:        "string",
				Description: "Request represents a minimum amount of cpu/memory that a container may consume.",
			},
			{
				Name: "Limit",
				Type: "string",
				Description: "Limits control the maximum amount of cpu/memory that a container may use independent " +
					"of contention on the node.",
			},
			kind.AgeColumn,
		},
		Row: quotaRow,
		Status: &kind.Sub[*corev1.ResourceQuota]{
			PrepareUpdate:  func(q, old *corev1.ResourceQuota) { q.Spec = old.Spec },
			ValidateUpdate: func(q, _ *corev1.ResourceQuota) field.ErrorList { return validateQuotaStatus(q) },
		},
	}.Erase()
}

// quotaWarnings are about new quotas whose requests are larger than the limits that go with them.
func quotaWarnings(q, old *corev1.ResourceQuota) []string {
	if old != nil {
		return nil
	}
	var out []string
	for _, name := range []corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage,
	} {
		key := "requests." + name
		request, ok := q.Spec.Hard[key]
		if !ok && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			key = name // the short form of the same request
			request, ok = q.Spec.Hard[key]
		}
		limit, limited := q.Spec.Hard["limits."+name]
		if ok && limited && request.Cmp(limit) > 0 {
			out = append(out, fmt.Sprintf("ResourceQuota %s (%s) should be less than limits.%s (%s)", key,
				request.String(), name, limit.String()))
		}
	}
	return out
}

func quotaRow(quota *corev1.ResourceQuota) []any {
	var requests, limits []string
	for _, name := range slices.Sorted(maps.Keys(quota.Status.Hard)) {
		used := quota.Status.Used[name]
		hard := quota.Status.Hard[name]
		cell := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(string(name), "limits.") {
			limits = append(limits, cell)
		} else {
			requests = append(requests, cell)
		}
	}
	return []any{
		quota.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), kind.Age(quota.CreationTimestamp),
	}
}

func validateQuota(q *corev1.ResourceQuota) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(q)...)
	l.Within("spec", func() {
		quotaAmounts(l, "hard", q.Spec.Hard)
		quotaScopes(l, &q.Spec)
		quotaSelector(l, &q.Spec)
	})
	l.Add(validateQuotaStatus(q)...)
	return l.Errors()
}

func validateQuotaStatus(q *corev1.ResourceQuota) field.ErrorList {
	l := check.At(field.NewPath("status"))
	quotaAmounts(l, "hard", q.Status.Hard)
	quotaAmounts(l, "used", q.Status.Used)
	return l.Errors()
}

func validateQuotaUpdate(q, old *corev1.ResourceQuota) field.ErrorList {
	errs := validateQuota(q)
	if !sets.New(q.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, "field is immutable"))
	}
	return errs
}

func quotaAmounts(l *check.List, child string, list corev1.ResourceList) {
	l.In(child)
	defer l.Out()
	for _, name := range slices.Sorted(maps.Keys(list)) {
		l.Key(string(name))
		podspec.ResourceName(l, name)
		if !strings.Contains(string(name), "/") && !resources.IsQuota(name) {
			l.Invalid("", string(name), "must be a standard resource for quota")
		}
		quotaAmount(l, name, list[name])
		l.Out()
	}
}

func quotaAmount(l *check.List, name corev1.ResourceName, q resource.Quantity) {
	if q.Sign() < 0 {
		l.Invalid("", q.String(), "must be greater than or equal to 0")
	}
	if resources.IsWhole(name) && q.MilliValue()%1000 != 0 {
		l.Invalid("", q.String(), "must be an integer")
	}
}

var quotaScopeNames = []corev1.ResourceQuotaScope{
	corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort,
	corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass,
	corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
	corev1.ResourceQuotaScopeVolumeAttributesClass,
}

// scopeFits reports whether a quota on the resource can be limited to the scope.
func scopeFits(scope corev1.ResourceQuotaScope, name corev1.ResourceName) bool {
	if !resources.IsQuota(name) {
		return true // nothing is known about it
	}
	switch scope {
	case corev1.ResourceQuotaScopeBestEffort:
		return name == corev1.ResourcePods
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage
	}
	if !slices.Contains(quotaScopeNames, scope) {
		return true // nothing is known about that either
	}
	switch name {
	case corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceLimitsCPU,
		corev1.ResourceLimitsMemory,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory:
		return true
	}
	return false
}

func conflicting(scopes []corev1.ResourceQuotaScope) int {
	n := 0
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			n++
		}
	}
	return n
}

func quotaScopes(errs *check.List, spec *corev1.ResourceQuotaSpec) {
	for _, scope := range spec.Scopes {
		if !slices.Contains(quotaScopeNames, scope) {
			errs.Invalid("scopes", spec.Scopes, "unsupported scope")
		}
		for _, name := range slices.Sorted(maps.Keys(spec.Hard)) {
			if !scopeFits(scope, name) {
				errs.Invalid("scopes", spec.Scopes, "unsupported scope applied to resource")
			}
		}
	}
	for range conflicting(spec.Scopes) {
		errs.Invalid("scopes", spec.Scopes, "conflicting scopes")
	}
}

func quotaSelector(errs *check.List, spec *corev1.ResourceQuotaSpec) {
	if spec.ScopeSelector == nil {
		return
	}
	errs.In("scopeSelector")
	defer errs.Out()
	var scopes []corev1.ResourceQuotaScope
	errs.Within("matchExpressions", func() {
		for i := range spec.ScopeSelector.MatchExpressions {
			r := &spec.ScopeSelector.MatchExpressions[i]
			scopes = append(scopes, r.ScopeName)
			quotaRequirement(errs, spec, r)
		}
		for range conflicting(scopes) {
			errs.Invalid("", spec.Scopes, "conflicting scopes")
		}
	})
}

func quotaRequirement(
	errs *check.List, s *corev1.ResourceQuotaSpec, requirement *corev1.ScopedResourceSelectorRequirement,
) {
	if !slices.Contains(quotaScopeNames, requirement.ScopeName) {
		errs.Invalid("scopeName", requirement.ScopeName, "unsupported scope")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Hard)) {
		if !scopeFits(requirement.ScopeName, name) {
			errs.Invalid("", s.ScopeSelector, "unsupported scope applied to resource")
		}
	}
	switch requirement.ScopeName {
	case corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeVolumeAttributesClass:
	default:
		if requirement.Operator != corev1.ScopeSelectorOpExists && slices.Contains(quotaScopeNames,
			requirement.ScopeName) {
			errs.Invalid("operator", requirement.Operator,
				"must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "+
					"ResourceQuotaScopeNotTerminating, "+
					"ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or "+
					"ResourceQuotaScopeCrossNamespacePodAffinity")
		}
	}
	switch requirement.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(requirement.Values) == 0 {
			errs.Required("values", "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(requirement.Values) != 0 {
			errs.Invalid("values", requirement.Values,
				"must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")
		}
	default:
		errs.Invalid("operator", requirement.Operator, "not a valid selector operator")
	}
}
