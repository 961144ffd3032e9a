// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
)

// invalidReview is the Invalid error of a review. Like Kubernetes' it names no kind.
func invalidReview(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return invalid.New(schema.GroupKind{Group: authorizationv1.GroupName}, "", errs)
}

// noMetadata checks that a review has no metadata except a namespace.
func noMetadata(m *metav1.ObjectMeta, detail string) field.ErrorList {
	rest := *m
	rest.ManagedFields = nil
	if apiequality.Semantic.DeepEqual(rest, metav1.ObjectMeta{}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), *m, detail)}
}

func validateLocal(q *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	errs := validateAccess(&q.Spec, true)
	rest := q.ObjectMeta
	rest.Namespace = ""
	errs = append(errs, noMetadata(&rest, "must be empty except for namespace")...)
	if ra := q.Spec.ResourceAttributes; ra != nil && ra.Namespace != q.Namespace {
		errs = append(errs, field.Invalid(field.NewPath("spec.resourceAttributes.namespace"), ra.Namespace,
			"must match metadata.namespace"))
	}
	if n := q.Spec.NonResourceAttributes; n != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec.nonResourceAttributes"), pathAttributes(*n),
			"disallowed on this kind of request"))
	}
	return errs
}

// pathAttributes are the attributes of a path, printed as in Kubernetes.
type pathAttributes struct{ Path, Verb string }

// validateAccess validates an access review; subjectRequired: it must contain a user or groups.
func validateAccess(spec *authorizationv1.SubjectAccessReviewSpec, subjectRequired bool) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if (spec.ResourceAttributes == nil) == (spec.NonResourceAttributes == nil) {
		errs = append(errs, field.Invalid(path, (*pathAttributes)(spec.NonResourceAttributes),
			"exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if subjectRequired && spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs,
			field.Invalid(path.Child("user"), spec.User, "at least one of user or group must be specified"))
	}
	ra := spec.ResourceAttributes
	if ra == nil {
		return errs
	}
	// Unknown operators are accepted, for reviews of newer clients.
	if s := ra.FieldSelector; s != nil {
		at := field.NewPath("spec.resourceAttributes.fieldSelector")
		errs = append(errs, validateSelector(at, s.RawSelector, len(s.Requirements))...)
		for i, req := range s.Requirements {
			errs = invalid.Append(errs, metav1validation.ValidateFieldSelectorRequirement(req,
				metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}, at.Child(
					"requirements").Index(i))...)
		}
	}
	if s := ra.LabelSelector; s != nil {
		at := field.NewPath("spec.resourceAttributes.labelSelector")
		errs = append(errs, validateSelector(at, s.RawSelector, len(s.Requirements))...)
		for i, req := range s.Requirements {
			errs = invalid.Append(errs, metav1validation.ValidateLabelSelectorRequirement(req,
				metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}, at.Child(
					"requirements").Index(i))...)
		}
	}
	return errs
}

func validateSelector(at *field.Path, raw string, requirements int) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{
			field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements"),
		}
	case raw == "" && requirements == 0:
		return field.ErrorList{
			field.Required(at.Child("requirements"),
				fmt.Sprintf("when %s is specified, requirements or rawSelector is required", at)),
		}
	}
	return nil
}
