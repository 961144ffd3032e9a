// SPDX-License-Identifier: Apache-2.0

// Package storagemigration describes the kinds of storagemigration.k8s.io/v1:
// orders to write all objects of a resource again, in their newest stored form.
package storagemigration

import (
	migrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
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
			Group: gv.Group, Version: gv.Version, Kind: "StorageVersionMigration", Resource: "storageversionmigrations", Singular: "storageversionmigration",
		},
		New:           func() *migration { return &migration{} },
		NewList:       func() runtime.Object { return &migrationv1.StorageVersionMigrationList{} },
		PrepareCreate: func(m *migration) { m.Generation, m.Status = 1, migrationv1.StorageVersionMigrationStatus{} },
		PrepareUpdate: func(m, old *migration) {
			m.Status, m.Generation = old.Status, old.Generation
			if !equality.Semantic.DeepEqual(m.Spec, old.Spec) {
				m.Generation++
			}
		},
		Validate: validate,
		ValidateUpdate: func(m, old *migration) field.ErrorList {
			l := check.At(field.NewPath("spec"))
			l.Add(validate(m)...)
			l.Immutable("resource", m.Spec.Resource, old.Spec.Resource)
			return l.Errors()
		},
		NoUnconditionalUpdate: true,

		Columns: []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Description: "The name of the order."},
			{Name: "Resource", Type: "string", Description: "Fully qualified resource to migrate"},
		},
		Row: func(m *migration) []any {
			r := m.Spec.Resource.Resource
			if g := m.Spec.Resource.Group; g != "" {
				r += "." + g
			}
			return []any{m.Name, r}
		},
		Status: &kind.Sub[*migration]{
			PrepareUpdate: func(m, old *migration) {
				m.Spec = old.Spec
				meta.KeepForStatus(m, old)
			},
			ValidateUpdate: func(m, _ *migration) field.ErrorList {
				return metavalidation.ValidateConditions(m.Status.Conditions, field.NewPath("status", "conditions"))
			},
		},
	}.Erase()
}

func validate(m *migration) field.ErrorList {
	l := check.At(field.NewPath("spec", "resource"))
	if m.Spec.Resource.Resource == "" {
		l.Required("resource", "resource is required")
	} else {
		l.Label("resource", m.Spec.Resource.Resource)
	}
	if g := m.Spec.Resource.Group; g != "" {
		l.Subdomain("group", g)
	}
	return l.Errors()
}
