// SPDX-License-Identifier: Apache-2.0

package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/meta"
)

// ReplicaSet describes apps/v1 ReplicaSet.
func ReplicaSet(on gates.On) *kind.Kind {
	return kind.Spec[*appsv1.ReplicaSet]{
		Names:   names("ReplicaSet", "replicasets", "replicaset", []string{"all"}, "rs"),
		New:     func() *appsv1.ReplicaSet { return &appsv1.ReplicaSet{} },
		NewList: func() runtime.Object { return &appsv1.ReplicaSetList{} },
		Default: defaultReplicaSet,
		PrepareCreate: func(rs *appsv1.ReplicaSet) {
			rs.Generation = 1
			rs.Status = appsv1.ReplicaSetStatus{}
			podspec.DropDisabled(&rs.Spec.Template.Spec, nil, on)
		},
		PrepareUpdate: func(rs, old *appsv1.ReplicaSet) {
			rs.Status = old.Status
			rs.Generation = old.Generation
			podspec.DropDisabled(&rs.Spec.Template.Spec, &old.Spec.Template.Spec, on)
			if !equality.Semantic.DeepEqual(rs.Spec, old.Spec) {
				rs.Generation++
			}
		},
		Validate: func(rs *appsv1.ReplicaSet) field.ErrorList {
			return append(meta.Finalizers(rs), validateReplicaSetSpec(&rs.Spec, field.NewPath("spec"))...)
		},
		ValidateUpdate: func(rs, old *appsv1.ReplicaSet) field.ErrorList {
			errs := validateReplicaSetSpec(&rs.Spec, field.NewPath("spec"))
			return append(errs, apivalidation.ValidateImmutableField(rs.Spec.Selector, old.Spec.Selector,
				field.NewPath("spec", "selector"))...)
		},
		Warnings: func(rs, old *appsv1.ReplicaSet) []string {
			var out []string
			if old == nil {
				out = podspec.NameWarnings(rs.Name)
			}
			return append(out, templateWarnings(&rs.Spec.Template, old == nil || rs.Generation != old.Generation)...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Desired", Type: "integer", Description: appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]},
			{Name: "Current", Type: "integer", Description: appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]},
			{Name: "Ready", Type: "integer", Description: appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]},
			kind.AgeColumn, containersColumn, imagesColumn,
			selectorColumn(appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"]),
		},
		Row: func(rs *appsv1.ReplicaSet) []any {
			n, i := containers(&rs.Spec.Template.Spec)
			return []any{
				rs.Name, int64(replicas(rs.Spec.Replicas)), int64(rs.Status.Replicas), int64(rs.Status.ReadyReplicas),
				kind.Age(rs.CreationTimestamp), n, i, metav1.FormatLabelSelector(rs.Spec.Selector),
			}
		},
		Status: &kind.Sub[*appsv1.ReplicaSet]{
			PrepareUpdate:  func(rs, old *appsv1.ReplicaSet) { rs.Spec = old.Spec },
			ValidateUpdate: func(rs, _ *appsv1.ReplicaSet) field.ErrorList { return validateReplicaSetStatus(rs) },
		},
		Scale: &kind.Scale[*appsv1.ReplicaSet]{
			Get: func(rs *appsv1.ReplicaSet) (int32, int32, string) {
				return replicas(rs.Spec.Replicas), rs.Status.Replicas, selectorString(rs.Spec.Selector)
			},
			Set:  func(rs *appsv1.ReplicaSet, n int32) { rs.Spec.Replicas = &n },
			Path: []string{"spec", "replicas"},
		},
	}.Erase()
}

func defaultReplicaSet(rs *appsv1.ReplicaSet) {
	def(&rs.Spec.Replicas, 1)
	podspec.DefaultTemplate(&rs.Spec.Template)
}

func validateReplicaSetSpec(s *appsv1.ReplicaSetSpec, path *field.Path) field.ErrorList {
	errs := nonNegative(replicas(s.Replicas), path.Child("replicas"))
	errs = append(errs, nonNegative(s.MinReadySeconds, path.Child("minReadySeconds"))...)
	sel, more := validateSelector(s.Selector, path.Child("selector"), "deployment")
	errs = append(errs, more...)
	return append(errs, validateTemplate(&s.Template, sel, path.Child("template"), "ReplicaSet")...)
}

func validateReplicaSetStatus(rs *appsv1.ReplicaSet) field.ErrorList {
	path := field.NewPath("status")
	status := &rs.Status
	errs := nonNegative(status.Replicas, path.Child("replicas"))
	errs = append(errs, nonNegative(status.FullyLabeledReplicas, path.Child("fullyLabeledReplicas"))...)
	errs = append(errs, nonNegative(status.ReadyReplicas, path.Child("readyReplicas"))...)
	errs = append(errs, nonNegative(status.AvailableReplicas, path.Child("availableReplicas"))...)
	errs = append(errs, nonNegative(kind.Value(status.TerminatingReplicas), path.Child("terminatingReplicas"))...)
	errs = append(errs, apivalidation.ValidateNonnegativeField(status.ObservedGeneration,
		path.Child("observedGeneration"))...)
	const more = "cannot be greater than status.replicas"
	if status.FullyLabeledReplicas > status.Replicas {
		errs = append(errs, field.Invalid(path.Child("fullyLabeledReplicas"), status.FullyLabeledReplicas, more))
	}
	if status.ReadyReplicas > status.Replicas {
		errs = append(errs, field.Invalid(path.Child("readyReplicas"), status.ReadyReplicas, more))
	}
	if status.AvailableReplicas > status.Replicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), status.AvailableReplicas, more))
	}
	if status.AvailableReplicas > status.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), status.AvailableReplicas,
			"cannot be greater than readyReplicas"))
	}
	return errs
}

func selectorString(sel *metav1.LabelSelector) string {
	s, err := metav1.LabelSelectorAsSelector(sel)
	if err != nil {
		return ""
	}
	return s.String()
}
