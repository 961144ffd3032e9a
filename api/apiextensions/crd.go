// SPDX-License-Identifier: Apache-2.0

// Package apiextensions describes the kind CustomResourceDefinition of
// apiextensions.k8s.io/v1: defaults, validation, columns, and what deleting one
// means. The registry lists it; apiserver/crd serves what the definitions define.
package apiextensions

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
	"keelson/lib/celenv"
)

// CustomResourceDefinition describes apiextensions.k8s.io/v1 CustomResourceDefinition.
func CustomResourceDefinition() *kind.Kind {
	gv := v1.SchemeGroupVersion
	return kind.Spec[*v1.CustomResourceDefinition]{
		Names: kind.Names{
			Group:      gv.Group,
			Version:    gv.Version,
			Kind:       "CustomResourceDefinition",
			Resource:   "customresourcedefinitions",
			Singular:   "customresourcedefinition",
			ShortNames: []string{"crd", "crds"},
			Categories: []string{"api-extensions"},
		},
		New:           func() *v1.CustomResourceDefinition { return &v1.CustomResourceDefinition{} },
		NewList:       func() runtime.Object { return &v1.CustomResourceDefinitionList{} },
		Default:       v1.SetObjectDefaults_CustomResourceDefinition,
		PrepareCreate: prepareCreate,
		PrepareUpdate: prepareUpdate,
		Validate: func(obj *v1.CustomResourceDefinition) field.ErrorList {
			in, err := toInternal(obj)
			if err != nil {
				return unreadable(err)
			}
			errs := withoutSchema(in)
			celenv.Bound() // before the validation takes the environment of expressions
			return append(validation.ValidateCustomResourceDefinition(context.Background(), in), errs...)
		},
		ValidateUpdate: func(obj, old *v1.CustomResourceDefinition) field.ErrorList {
			in, before, err := bothInternal(obj, old)
			if err != nil {
				return unreadable(err)
			}
			errs := withoutSchema(in)
			celenv.Bound() // before the validation takes the environment of expressions
			return append(validation.ValidateCustomResourceDefinitionUpdate(context.Background(), in, before), errs...)
		},
		ValidateName: func(string, bool) []string { return nil }, // it must be <plural>.<group>, which Validate checks
		Warnings:     warnings,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Scope", Type: "string", Description: "Whether the objects are of the cluster or of a namespace."},
			{Name: "Versions", Type: "string", Description: "The versions that are served."},
			{Name: "Created At", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
			kind.Wide("Group", "The group of the kind."), kind.Wide("Kind", "The name of the kind."),
			kind.Wide("ShortNames", "Short names of the resource."),
			{
				Name:        "Established",
				Type:        "boolean",
				Priority:    1,
				Description: "Whether the resource is there.",
			},
		},
		Row:                   row,
		NoUnconditionalUpdate: true,
		StoredVersions:        map[string]func([]byte) (*v1.CustomResourceDefinition, error){"v1beta1": fromV1beta1},
		Status: &kind.Sub[*v1.CustomResourceDefinition]{
			PrepareUpdate: func(obj, old *v1.CustomResourceDefinition) {
				obj.Spec = old.Spec
				obj.Labels = old.Labels
				obj.Annotations = old.Annotations
				obj.OwnerReferences = old.OwnerReferences
			},
			ValidateUpdate: func(obj, old *v1.CustomResourceDefinition) field.ErrorList {
				in, before, err := bothInternal(obj, old)
				if err != nil {
					return unreadable(err)
				}
				return validation.ValidateUpdateCustomResourceDefinitionStatus(context.Background(), in, before)
			},
		},
	}.Erase()
}

// Terminate notes on a definition whose deletion begins that its objects go first; the finalizer holds it until they
// have.
func Terminate(obj kind.Object) {
	crd, ok := obj.(*v1.CustomResourceDefinition)
	if !ok || slices.Contains(crd.Finalizers, v1.CustomResourceCleanupFinalizer) {
		return
	}
	crd.Finalizers = append(crd.Finalizers, v1.CustomResourceCleanupFinalizer)
	SetCondition(crd, v1.CustomResourceDefinitionCondition{
		Type:    v1.Terminating,
		Status:  v1.ConditionTrue,
		Reason:  "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
}

// Held reports a definition that is about to be deleted that its objects still hold it: always, when its deletion
// begins.
func Held(obj kind.Object) bool { return obj.GetDeletionTimestamp() == nil }

// SetCondition sets condition on crd; its time changes only with its status.
func SetCondition(crd *v1.CustomResourceDefinition, condition v1.CustomResourceDefinitionCondition) {
	condition.LastTransitionTime = metav1.Now().Rfc3339Copy()
	for i := range crd.Status.Conditions {
		have := &crd.Status.Conditions[i]
		if have.Type != condition.Type {
			continue
		}
		if have.Status == condition.Status {
			condition.LastTransitionTime = have.LastTransitionTime
		}
		*have = condition
		return
	}
	crd.Status.Conditions = append(crd.Status.Conditions, condition)
}

// Condition returns crd's condition of type t, or nil.
func Condition(
	crd *v1.CustomResourceDefinition, t v1.CustomResourceDefinitionConditionType,
) *v1.CustomResourceDefinitionCondition {
	i := slices.IndexFunc(crd.Status.Conditions, func(c v1.CustomResourceDefinitionCondition) bool {
		return c.Type == t
	})
	if i < 0 {
		return nil
	}
	return &crd.Status.Conditions[i]
}

// Is reports whether crd's condition of type t is true.
func Is(crd *v1.CustomResourceDefinition, t v1.CustomResourceDefinitionConditionType) bool {
	c := Condition(crd, t)
	return c != nil && c.Status == v1.ConditionTrue
}

func prepareCreate(crd *v1.CustomResourceDefinition) {
	crd.Status = v1.CustomResourceDefinitionStatus{}
	crd.Generation = 1
	noteStored(crd)
}

func prepareUpdate(crd, old *v1.CustomResourceDefinition) {
	crd.Status = *old.Status.DeepCopy()
	if !apiequality.Semantic.DeepEqual(crd.Spec, old.Spec) {
		crd.Generation = old.Generation + 1
	}
	noteStored(crd)
}

// noteStored adds the storage version to those that objects may be stored in.
func noteStored(crd *v1.CustomResourceDefinition) {
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Storage {
			if !slices.Contains(crd.Status.StoredVersions, v.Name) {
				crd.Status.StoredVersions = append(crd.Status.StoredVersions, v.Name)
			}
			return
		}
	}
}

// toInternal turns crd into the form that the validation library reads. crd stays as it is, though the two may share
// parts.
func toInternal(crd *v1.CustomResourceDefinition) (*internal.CustomResourceDefinition, error) {
	out := &internal.CustomResourceDefinition{}
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd.DeepCopy(), out,
		nil); err != nil {
		return nil, fmt.Errorf("read definition %s: %w", crd.Name, err)
	}
	return out, nil
}

func bothInternal(obj, old *v1.CustomResourceDefinition) (in, before *internal.CustomResourceDefinition, err error) {
	if in, err = toInternal(obj); err != nil {
		return nil, nil, err
	}
	before, err = toInternal(old)
	return in, before, err
}

// withoutSchema refuses selectable fields of versions whose schema cannot be read, and takes them out: the validation
// library panics on them (Kubernetes v1.37 breaks such a request off).
func withoutSchema(in *internal.CustomResourceDefinition) (errs field.ErrorList) {
	check := func(s *internal.CustomResourceValidation, fields *[]internal.SelectableField, path *field.Path) {
		if s == nil || len(*fields) == 0 {
			return
		}
		if ss, err := structural.NewStructural(s.OpenAPIV3Schema); err != nil || ss == nil {
			*fields = nil
			errs = append(errs, field.Invalid(path.Child("selectableFields"), "",
				"may only be set when validations.schema is included"))
		}
	}
	spec := field.NewPath("spec")
	check(in.Spec.Validation, &in.Spec.SelectableFields, spec)
	for i := range in.Spec.Versions {
		v := &in.Spec.Versions[i]
		check(v.Schema, &v.SelectableFields, spec.Child("versions").Index(i))
	}
	return errs
}

func unreadable(err error) field.ErrorList {
	return field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
}

func row(obj *v1.CustomResourceDefinition) []any {
	var versions []string
	for _, v := range obj.Spec.Versions {
		switch {
		case v.Served && v.Storage:
			versions = append(versions, v.Name+"(storage)")
		case v.Served:
			versions = append(versions, v.Name)
		}
	}
	slices.Sort(versions)
	established := slices.ContainsFunc(obj.Status.Conditions, func(c v1.CustomResourceDefinitionCondition) bool {
		return c.Type == v1.Established && c.Status == v1.ConditionTrue
	})
	s := &obj.Spec
	return []any{
		obj.Name, string(s.Scope), strings.Join(versions, ","), obj.CreationTimestamp.UTC().Format(time.RFC3339),
		s.Group, s.Names.Kind, strings.Join(s.Names.ShortNames, ","), established,
	}
}
