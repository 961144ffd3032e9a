// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
)

// ReplicationController describes v1 ReplicationController.
func ReplicationController(on gates.On) *kind.Kind {
	return kind.Spec[*corev1.ReplicationController]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "ReplicationController",
			Resource:   "replicationcontrollers",
			Singular:   "replicationcontroller",
			ShortNames: []string{"rc"},
			Categories: []string{"all"},
			Namespaced: true,
		},
		New:     func() *corev1.ReplicationController { return &corev1.ReplicationController{} },
		NewList: func() runtime.Object { return &corev1.ReplicationControllerList{} },
		Default: defaultReplicationController,
		PrepareCreate: func(rc *corev1.ReplicationController) {
			rc.Generation = 1
			rc.Status = corev1.ReplicationControllerStatus{}
			dropDisabled(rc, nil, on)
		},
		PrepareUpdate: func(rc, old *corev1.ReplicationController) {
			rc.Status = old.Status
			rc.Generation = old.Generation
			dropDisabled(rc, old, on)
			if !equality.Semantic.DeepEqual(rc.Spec, old.Spec) {
				rc.Generation++
			}
		},
		Validate: func(rc *corev1.ReplicationController) field.ErrorList {
			errs := meta.Finalizers(rc)
			if rc.Name != "" {
				errs = append(errs, validate.LongName(context.Background(), operation.Operation{},
					field.NewPath("metadata", "name"), &rc.Name, nil).MarkBeta()...)
			}
			return append(errs, validateRCSpec(&rc.Spec, field.NewPath("spec"))...)
		},
		ValidateUpdate: func(rc, _ *corev1.ReplicationController) field.ErrorList {
			return validateRCSpec(&rc.Spec, field.NewPath("spec"))
		},
		ValidateName: func(name string, prefix bool) []string {
			if !prefix {
				return nil // Validate does that
			}
			return path.ValidatePathSegmentName(name, prefix) //nolint:staticcheck // a copy is no better
		},
		Warnings: rcWarnings,
		Fields: func(rc *corev1.ReplicationController) fields.Set {
			return fields.Set{"status.replicas": fmt.Sprint(rc.Status.Replicas)}
		},
		Columns:         replicationControllerColumns(),
		Row:             replicationControllerRow,
		OrphanByDefault: true,
		Status: &kind.Sub[*corev1.ReplicationController]{
			PrepareUpdate:  func(rc, old *corev1.ReplicationController) { rc.Spec = old.Spec },
			ValidateUpdate: func(rc, _ *corev1.ReplicationController) field.ErrorList { return validateRCStatus(rc) },
		},
		Scale: &kind.Scale[*corev1.ReplicationController]{
			Get: func(rc *corev1.ReplicationController) (int32, int32, string) {
				return rcReplicas(&rc.Spec), rc.Status.Replicas, labels.SelectorFromSet(rc.Spec.Selector).String()
			},
			Set:  func(rc *corev1.ReplicationController, n int32) { rc.Spec.Replicas = &n },
			Path: []string{"spec", "replicas"},
		},
	}.Erase()
}

func replicationControllerColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.NameColumn,
		{Name: "Desired", Type: "integer", Description: corev1.ReplicationControllerSpec{}.SwaggerDoc()["replicas"]},
		{Name: "Current", Type: "integer", Description: corev1.ReplicationControllerStatus{}.SwaggerDoc()["replicas"]},
		{
			Name:        "Ready",
			Type:        "integer",
			Description: corev1.ReplicationControllerStatus{}.SwaggerDoc()["readyReplicas"],
		},
		kind.AgeColumn,
		{
			Name:        "Containers",
			Type:        "string",
			Priority:    1,
			Description: "Names of each container in the template.",
		},
		{
			Name:        "Images",
			Type:        "string",
			Priority:    1,
			Description: "Images referenced by each container in the template.",
		},
		{
			Name:        "Selector",
			Type:        "string",
			Priority:    1,
			Description: corev1.ReplicationControllerSpec{}.SwaggerDoc()["selector"],
		},
	}
}

// defaultReplicationController: selector and labels default to the template's labels.
func defaultReplicationController(rc *corev1.ReplicationController) {
	spec := &rc.Spec
	if spec.Template != nil {
		if l := spec.Template.Labels; len(l) > 0 {
			if len(spec.Selector) == 0 {
				spec.Selector = l
			}
			if len(rc.Labels) == 0 {
				rc.Labels = l
			}
		}
		podspec.DefaultTemplate(spec.Template)
	}
	if spec.Replicas == nil {
		one := int32(1)
		spec.Replicas = &one
	}
}

// dropDisabled drops what templates cannot have yet; old is nil on create.
func dropDisabled(rc, old *corev1.ReplicationController, on gates.On) {
	if rc.Spec.Template == nil {
		return
	}
	var was *corev1.PodSpec
	if old != nil && old.Spec.Template != nil {
		was = &old.Spec.Template.Spec
	}
	podspec.DropDisabled(&rc.Spec.Template.Spec, was, on)
}

func rcReplicas(s *corev1.ReplicationControllerSpec) int32 {
	if s.Replicas == nil {
		return 0
	}
	return *s.Replicas
}

// rcWarnings advise a name that hosts can have, and whatever templates are advised. At an update they are about the new
// template; Kubernetes v1.37 looks at the old one by mistake, v1.38 at the new one.
func rcWarnings(rc, old *corev1.ReplicationController) []string {
	var out []string
	if old == nil {
		out = podspec.NameWarnings(rc.Name)
	}
	if rc.Spec.Template == nil || old != nil && rc.Generation == old.Generation {
		return out
	}
	return append(out, podspec.TemplateWarnings(rc.Spec.Template, field.NewPath("spec", "template"))...)
}

func validateRCSpec(spec *corev1.ReplicationControllerSpec, at *field.Path) field.ErrorList {
	errs := apivalidation.ValidateNonnegativeField(int64(spec.MinReadySeconds), at.Child("minReadySeconds")).MarkBeta()
	sel := labels.SelectorFromSet(spec.Selector)
	if len(spec.Selector) == 0 {
		errs = append(errs, field.Required(at.Child("selector"), ""))
	}
	if spec.Replicas == nil {
		errs = append(errs, field.Required(at.Child("replicas"), "").MarkBeta())
	} else {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*spec.Replicas), at.Child("replicas")).
			MarkBeta()...)
	}
	tpl := at.Child("template")
	if spec.Template == nil {
		return append(errs, field.Required(tpl, ""))
	}
	if !sel.Empty() && !sel.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(tpl.Child("metadata", "labels"), spec.Template.Labels,
			"`selector` does not match template `labels`"))
	}
	errs = append(errs, podspec.ValidateTemplate(spec.Template, tpl)...)
	if spec.Template.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(tpl.Child("spec", "restartPolicy"), spec.Template.Spec.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if spec.Template.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(tpl.Child("spec", "activeDeadlineSeconds"),
			"activeDeadlineSeconds in ReplicationController is not Supported"))
	}
	return errs
}

func validateRCStatus(rc *corev1.ReplicationController) field.ErrorList {
	at := field.NewPath("status")
	status := &rc.Status
	var errs field.ErrorList
	counts := []struct {
		name string
		n    int32
	}{{"replicas", status.Replicas}, {"fullyLabeledReplicas", status.FullyLabeledReplicas}, {
		"readyReplicas", status.ReadyReplicas,
	}, {
		"availableReplicas", status.AvailableReplicas,
	}}
	for _, f := range counts {
		errs = invalid.Append(errs, apivalidation.ValidateNonnegativeField(int64(f.n), at.Child(f.name))...)
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(status.ObservedGeneration,
		at.Child("observedGeneration"))...)
	for _, f := range counts {
		if f.n > status.Replicas {
			errs = invalid.Append(errs, field.Invalid(at.Child(f.name), f.n, "cannot be greater than status.replicas"))
		}
	}
	if status.AvailableReplicas > status.ReadyReplicas {
		errs = append(errs, field.Invalid(at.Child("availableReplicas"), status.AvailableReplicas,
			"cannot be greater than readyReplicas"))
	}
	return errs
}

func replicationControllerRow(rc *corev1.ReplicationController) []any {
	var names, images []string
	if rc.Spec.Template != nil {
		for _, c := range rc.Spec.Template.Spec.Containers {
			names = append(names, c.Name)
			images = append(images, c.Image)
		}
	}
	return []any{
		rc.Name, int64(rcReplicas(&rc.Spec)), int64(rc.Status.Replicas), int64(rc.Status.ReadyReplicas),
		kind.Age(rc.CreationTimestamp),
		strings.Join(names, ","), strings.Join(images, ","), labels.FormatLabels(rc.Spec.Selector),
	}
}
