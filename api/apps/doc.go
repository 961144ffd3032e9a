// SPDX-License-Identifier: Apache-2.0

// Package apps describes the kinds of apps/v1: deployments, replica sets, stateful
// sets, daemon sets and controller revisions. The registry lists them; everything here is pure.
package apps

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/kind"
)

var group = appsv1.SchemeGroupVersion

// def sets *p to v where it is nil.
func def[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// validateSelector checks a workload's selector; what is the kind as the message calls it ("deployment").
func validateSelector(sel *metav1.LabelSelector, path *field.Path, what string) (labels.Selector, field.ErrorList) {
	if sel == nil {
		return labels.Nothing(), field.ErrorList{field.Required(path, "")}
	}
	errs := metav1validation.ValidateLabelSelector(sel, metav1validation.LabelSelectorValidationOptions{}, path)
	if len(sel.MatchLabels)+len(sel.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path, sel, "empty selector is invalid for "+what))
	}
	s, err := metav1.LabelSelectorAsSelector(sel)
	if err != nil {
		detail := "invalid label selector"
		if what == "statefulset" {
			detail = ""
		}
		return nil, append(errs, field.Invalid(path, sel, detail))
	}
	return s, errs
}

// validateTemplate checks a workload's pod template: it must match the selector and restart forever. what is the kind
// as messages call it.
func validateTemplate(t *corev1.PodTemplateSpec, sel labels.Selector, path *field.Path, what string) field.ErrorList {
	if sel == nil {
		return nil // nothing to hold it against
	}
	errs := matches(t, sel, path)
	errs = append(errs, podspec.ValidateTemplate(t, path)...)
	return append(errs, foreverErrors(t, path, what)...)
}

func matches(t *corev1.PodTemplateSpec, sel labels.Selector, path *field.Path) field.ErrorList {
	if sel.Empty() || sel.Matches(labels.Set(t.Labels)) {
		return nil
	}
	return field.ErrorList{
		field.Invalid(path.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"),
	}
}

// foreverErrors: pods of t must restart forever.
func foreverErrors(t *corev1.PodTemplateSpec, path *field.Path, what string) field.ErrorList {
	var errs field.ErrorList
	if t.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("spec", "restartPolicy"), t.Spec.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("spec", "activeDeadlineSeconds"),
			"activeDeadlineSeconds in "+what+" is not Supported"))
	}
	return errs
}

func nonNegative(n int32, path *field.Path) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(int64(n), path)
}

// containers and images are the wide columns of a workload.
func containers(spec *corev1.PodSpec) (names, images string) {
	var n, i []string
	for _, c := range spec.Containers {
		n = append(n, c.Name)
		i = append(i, c.Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

var (
	containersColumn = metav1.TableColumnDefinition{
		Name:        "Containers",
		Type:        "string",
		Priority:    1,
		Description: "Names of each container in the template.",
	}
	imagesColumn = metav1.TableColumnDefinition{
		Name:        "Images",
		Type:        "string",
		Priority:    1,
		Description: "Images referenced by each container in the template.",
	}
)

func replicas(p *int32) int32 {
	if p == nil {
		return 0
	}
	return *p
}

func names(k, resource, singular string, categories []string, short ...string) kind.Names {
	return kind.Names{
		Group:      group.Group,
		Version:    group.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		ShortNames: short,
		Categories: categories,
		Namespaced: true,
	}
}

func selectorColumn(text string) metav1.TableColumnDefinition { return kind.Wide("Selector", text) }
