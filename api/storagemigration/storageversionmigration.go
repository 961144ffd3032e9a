// SPDX-License-Identifier: Apache-2.0

// Package storagemigration describes the kinds of storagemigration.k8s.io/v1:
// orders to write all objects of a resource again, in their newest stored form.
package storagemigration

import (
	"strings"

	migrationv1 "k8s.io/api/storagemigration/v1"
	conditions "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

type migration = migrationv1.StorageVersionMigration

// StorageVersionMigration describes storagemigration.k8s.io/v1 StorageVersionMigration.
func StorageVersionMigration() *kind.Kind {
	gv := migrationv1.SchemeGroupVersion
	return kind.Spec[*migration]{
		Names: kind.Names{
			Group:    gv.Group,
			Version:  gv.Version,
			Kind:     "StorageVersionMigration",
			Resource: "storageversionmigrations",
			Singular: "storageversionmigration",
		},
		New:           func() *migration { return &migration{} },
		NewList:       func() runtime.Object { return &migrationv1.StorageVersionMigrationList{} },
		PrepareCreate: func(m *migration) { m.Status = migrationv1.StorageVersionMigrationStatus{} },
		PrepareUpdate: func(m, old *migration) { m.Status = old.Status },
		Validate:      validate,
		ValidateUpdate: func(m, old *migration) field.ErrorList {
			l := check.At(nil)
			l.Add(validate(m)...)
			l.Immutable("spec", m.Spec, old.Spec)
			return l.Errors()
		},
		NoUnconditionalUpdate: true,

		Columns: []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Description: "The name of the order."},
			{Name: "Resource", Type: "string", Description: "Fully qualified resource to migrate"},
			{Name: "Status", Type: "string", Description: "What has become of the order."},
		},
		Row: func(m *migration) []any {
			r := m.Spec.Resource.Resource
			if g := m.Spec.Resource.Group; g != "" {
				r += "." + g
			}
			status := "Unknown"
			for _, c := range m.Status.Conditions {
				switch t := migrationv1.MigrationConditionType(c.Type); t {
				case migrationv1.MigrationRunning, migrationv1.MigrationFailed, migrationv1.MigrationSucceeded:
					if c.Status == metav1.ConditionTrue {
						status = c.Type
					}
				}
			}
			return []any{m.Name, r, status}
		},
		Status: &kind.Sub[*migration]{
			PrepareUpdate: func(m, old *migration) {
				m.Spec = old.Spec
				meta.KeepForStatus(m, old)
			},
			ValidateUpdate: validateStatus,
		},
	}.Erase()
}

func validate(m *migration) field.ErrorList {
	errs := check.At(field.NewPath("spec", "resource"))
	errs.Add(meta.Finalizers(m)...)
	if r := m.Spec.Resource.Resource; r == "" {
		errs.Required("resource", "resource is required to be set")
	} else if msgs := validation.IsDNS1035Label(r); len(msgs) > 0 {
		errs.Invalid("resource", r, strings.Join(msgs, ","))
	}
	if g := m.Spec.Resource.Group; g != "" {
		if msgs := validation.IsDNS1123Subdomain(g); len(msgs) > 0 {
			errs.Invalid("group", g, strings.Join(msgs, ","))
		}
	}
	return errs.Errors()
}

// validateStatus: a migration has begun at one version, and what it has come to is final.
func validateStatus(m, old *migration) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	is := &m.Status
	was := &old.Status
	if v := is.ResourceVersion; v != "" {
		if _, err := resourceversion.CompareResourceVersion(v, v); err != nil {
			errs.Invalid("resourceVersion", v, err.Error())
		}
	}
	errs.Add(metavalidation.ValidateConditions(is.Conditions, errs.Path("conditions"))...)
	if was.ResourceVersion != "" && was.ResourceVersion != is.ResourceVersion {
		errs.Invalid("resourceVersion", is.ResourceVersion, "field is immutable")
	}
	done := func(list []metav1.Condition, t migrationv1.MigrationConditionType) bool {
		return conditions.IsStatusConditionTrue(list, string(t))
	}
	if done(is.Conditions, migrationv1.MigrationSucceeded) && done(is.Conditions, migrationv1.MigrationFailed) {
		errs.Invalid("conditions", is.Conditions, "Both success and failed conditions cannot be true at the same time")
	}
	if done(was.Conditions, migrationv1.MigrationSucceeded) && !done(is.Conditions, migrationv1.MigrationSucceeded) {
		errs.Invalid("conditions", is.Conditions, "Success condition cannot be set to false once it is true")
	}
	if done(was.Conditions, migrationv1.MigrationFailed) && !done(is.Conditions, migrationv1.MigrationFailed) {
		errs.Invalid("conditions", is.Conditions, "Failed condition cannot be set to false once it is true")
	}
	return errs.Errors()
}
