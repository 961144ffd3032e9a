// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/meta"
)

// PodTemplate describes v1 PodTemplate.
func PodTemplate(on gates.On) *kind.Kind {
	check := func(t *corev1.PodTemplate) field.ErrorList {
		return append(meta.Finalizers(t), podspec.ValidateTemplate(&t.Template, field.NewPath("template"))...)
	}
	return kind.Spec[*corev1.PodTemplate]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "PodTemplate",
			Resource:   "podtemplates",
			Singular:   "podtemplate",
			Namespaced: true,
		},
		New:     func() *corev1.PodTemplate { return &corev1.PodTemplate{} },
		NewList: func() runtime.Object { return &corev1.PodTemplateList{} },
		Default: func(t *corev1.PodTemplate) { podspec.DefaultTemplate(&t.Template) },
		PrepareCreate: func(t *corev1.PodTemplate) {
			t.Generation = 1
			podspec.DropDisabled(&t.Template.Spec, nil, on)
		},
		PrepareUpdate: func(t, old *corev1.PodTemplate) {
			t.Generation = old.Generation
			podspec.DropDisabled(&t.Template.Spec, &old.Template.Spec, on)
			if !equality.Semantic.DeepEqual(t.Template, old.Template) {
				t.Generation++
			}
		},
		Validate:       check,
		ValidateUpdate: func(t, _ *corev1.PodTemplate) field.ErrorList { return check(t) },
		Warnings: func(t, old *corev1.PodTemplate) []string {
			if old != nil && t.Generation == old.Generation {
				return nil
			}
			return podspec.TemplateWarnings(&t.Template, field.NewPath("template"))
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Containers", Type: "string", Description: "Names of each container in the template."},
			{Name: "Images", Type: "string", Description: "Images referenced by each container in the template."},
			{Name: "Pod Labels", Type: "string", Description: "The labels for the pod template."},
		},
		Row: func(t *corev1.PodTemplate) []any {
			return append(append([]any{t.Name}, podspec.TemplateCells(&t.Template, nil)[:2]...),
				labels.FormatLabels(t.Template.Labels))
		},
	}.Erase()
}
