// SPDX-License-Identifier: Apache-2.0

// Package coordination describes the kinds of coordination.k8s.io/v1.
package coordination

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/api/kind"
)

// Lease describes coordination.k8s.io/v1 Lease.
func Lease() *kind.Kind {
	gv := coordinationv1.SchemeGroupVersion
	return kind.Spec[*coordinationv1.Lease]{
		Names: kind.Names{
			Group:      gv.Group,
			Version:    gv.Version,
			Kind:       "Lease",
			Resource:   "leases",
			Singular:   "lease",
			Namespaced: true,
		},
		New:            func() *coordinationv1.Lease { return &coordinationv1.Lease{} },
		NewList:        func() runtime.Object { return &coordinationv1.LeaseList{} },
		PrepareCreate:  func(l *coordinationv1.Lease) { dropDisabled(&l.Spec, nil) },
		PrepareUpdate:  func(l, old *coordinationv1.Lease) { dropDisabled(&l.Spec, &old.Spec) },
		Validate:       validateLease,
		ValidateUpdate: func(l, _ *coordinationv1.Lease) field.ErrorList { return validateLease(l) },
		CreateOnUpdate: true,
		// Two candidates must not overwrite each other unseen.
		NoUnconditionalUpdate: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {
				Name:        "Holder",
				Type:        "string",
				Description: coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"],
			}, kind.AgeColumn,
		},
		Row: func(l *coordinationv1.Lease) []any {
			holder := ""
			if l.Spec.HolderIdentity != nil {
				holder = *l.Spec.HolderIdentity
			}
			return []any{l.Name, holder, kind.Age(l.CreationTimestamp)}
		},
	}.Erase()
}

// dropDisabled drops what belongs to the gate CoordinatedLeaderElection, which is off, unless it is there already.
func dropDisabled(s, old *coordinationv1.LeaseSpec) {
	if old == nil || old.Strategy == nil {
		s.Strategy = nil
	}
	if old == nil || old.PreferredHolder == nil {
		s.PreferredHolder = nil
	}
}

func validateLease(lease *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if n := lease.Spec.LeaseDurationSeconds; n != nil && *n <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *n, "must be greater than 0"))
	}
	if n := lease.Spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
	}
	if s := lease.Spec.Strategy; s != nil {
		for _, msg := range apivalidation.NameIsDNSLabel(string(*s), false) {
			errs = invalid.Append(errs, field.Invalid(path.Child("strategy"), *s, msg))
		}
	}
	if h := lease.Spec.PreferredHolder; h != nil && *h != "" &&
		(lease.Spec.Strategy == nil || *lease.Spec.Strategy == "") {
		errs = append(errs,
			field.Forbidden(path.Child("preferredHolder"), "may not be specified when strategy is not specified"))
	}
	return errs
}
