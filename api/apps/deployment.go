// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/meta"
)

// Deployment describes apps/v1 Deployment.
func Deployment(on gates.On) *kind.Kind {
	return kind.Spec[*appsv1.Deployment]{
		Names:   names("Deployment", "deployments", "deployment", []string{"all"}, "deploy"),
		New:     func() *appsv1.Deployment { return &appsv1.Deployment{} },
		NewList: func() runtime.Object { return &appsv1.DeploymentList{} },
		Default: defaultDeployment,
		PrepareCreate: func(d *appsv1.Deployment) {
			d.Generation = 1
			d.Status = appsv1.DeploymentStatus{}
			podspec.DropDisabled(&d.Spec.Template.Spec, nil, on)
		},
		PrepareUpdate: func(d, old *appsv1.Deployment) {
			d.Status = old.Status
			d.Generation = old.Generation
			podspec.DropDisabled(&d.Spec.Template.Spec, &old.Spec.Template.Spec, on)
			// Annotations count: the controller copies them to the replica sets.
			if !equality.Semantic.DeepEqual(d.Spec, old.Spec) || !equality.Semantic.DeepEqual(d.Annotations,
				old.Annotations) {
				d.Generation++
			}
		},
		Validate: func(d *appsv1.Deployment) field.ErrorList {
			return append(meta.Finalizers(d), validateDeploymentSpec(&d.Spec, field.NewPath("spec"))...)
		},
		ValidateUpdate: func(d, old *appsv1.Deployment) field.ErrorList {
			errs := validateDeploymentSpec(&d.Spec, field.NewPath("spec"))
			return append(errs, apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector,
				field.NewPath("spec", "selector"))...)
		},
		Warnings: func(d, old *appsv1.Deployment) []string {
			var out []string
			if old == nil {
				out = podspec.NameWarnings(d.Name)
			}
			return append(out, templateWarnings(&d.Spec.Template, old == nil || d.Generation != old.Generation)...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Ready", Type: "string", Description: "Number of the pod with ready state"},
			{
				Name:        "Up-to-date",
				Type:        "string",
				Description: appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"],
			},
			{
				Name:        "Available",
				Type:        "string",
				Description: appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"],
			},
			kind.AgeColumn, containersColumn, imagesColumn,
			selectorColumn(appsv1.DeploymentSpec{}.SwaggerDoc()["selector"]),
		},
		Row: deploymentRow,
		Status: &kind.Sub[*appsv1.Deployment]{
			PrepareUpdate: func(d, old *appsv1.Deployment) {
				d.Spec = old.Spec
				d.Labels = old.Labels
			},
			ValidateUpdate: validateDeploymentStatus,
		},
		Scale: &kind.Scale[*appsv1.Deployment]{
			Get: func(d *appsv1.Deployment) (int32, int32, string) {
				return replicas(d.Spec.Replicas), d.Status.Replicas, selectorString(d.Spec.Selector)
			},
			Set:  func(d *appsv1.Deployment, n int32) { d.Spec.Replicas = &n },
			Path: []string{"spec", "replicas"},
		},
	}.Erase()
}

func deploymentRow(d *appsv1.Deployment) []any {
	n, i := containers(&d.Spec.Template.Spec)
	return []any{
		d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, replicas(d.Spec.Replicas)),
		int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas),
		kind.Age(d.CreationTimestamp), n, i, metav1.FormatLabelSelector(d.Spec.Selector),
	}
}

func defaultDeployment(d *appsv1.Deployment) {
	s := &d.Spec
	def(&s.Replicas, 1)
	if s.Strategy.Type == "" {
		s.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		def(&s.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		def(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		def(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	def(&s.RevisionHistoryLimit, 10)
	def(&s.ProgressDeadlineSeconds, 600)
	podspec.DefaultTemplate(&s.Template)
}

func validateDeploymentSpec(s *appsv1.DeploymentSpec, path *field.Path) field.ErrorList {
	errs := nonNegative(replicas(s.Replicas), path.Child("replicas"))
	sel, more := validateSelector(s.Selector, path.Child("selector"), "deployment")
	errs = append(errs, more...)
	errs = append(errs, validateTemplate(&s.Template, sel, path.Child("template"), "ReplicaSet")...)
	errs = append(errs, validateStrategy(&s.Strategy, path.Child("strategy"))...)
	errs = append(errs, nonNegative(s.MinReadySeconds, path.Child("minReadySeconds"))...)
	if s.RevisionHistoryLimit != nil {
		errs = append(errs, nonNegative(*s.RevisionHistoryLimit, path.Child("revisionHistoryLimit"))...)
	}
	if s.ProgressDeadlineSeconds != nil {
		p := path.Child("progressDeadlineSeconds")
		errs = append(errs, nonNegative(*s.ProgressDeadlineSeconds, p)...)
		if *s.ProgressDeadlineSeconds <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(p, *s.ProgressDeadlineSeconds, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateStrategy(s *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{
				field.Forbidden(path.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'"),
			}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			return field.ErrorList{
				field.Required(path.Child("rollingUpdate"), "this should be defaulted and never be nil"),
			}
		}
		return validateRolling(s.RollingUpdate, path.Child("rollingUpdate"))
	}
	return field.ErrorList{field.NotSupported(path, s,
		[]appsv1.DeploymentStrategyType{
			appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType,
		})}
}

func validateRolling(r *appsv1.RollingUpdateDeployment, path *field.Path) field.ErrorList {
	un := path.Child("maxUnavailable")
	surge := path.Child("maxSurge")
	errs := validateIntOrPercent(r.MaxUnavailable, un)
	errs = append(errs, validateIntOrPercent(r.MaxSurge, surge)...)
	if len(errs) > 0 {
		return errs
	}
	if amount(r.MaxUnavailable) == 0 && amount(r.MaxSurge) == 0 {
		errs = append(errs, field.Invalid(un, r.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
	}
	if r.MaxUnavailable != nil && r.MaxUnavailable.Type == intstr.String && amount(r.MaxUnavailable) > 100 {
		errs = append(errs, field.Invalid(un, r.MaxUnavailable, "must not be greater than 100%"))
	}
	return errs
}

func validateIntOrPercent(v *intstr.IntOrString, path *field.Path) field.ErrorList {
	if v == nil {
		return nil
	}
	if v.Type == intstr.String {
		var errs field.ErrorList
		for _, msg := range validation.IsValidPercent(v.StrVal) {
			errs = append(errs, field.Invalid(path, v, msg))
		}
		return errs
	}
	return nonNegative(v.IntVal, path)
}

// amount is the number in "25%" or 25.
func amount(v *intstr.IntOrString) int {
	if v == nil {
		return 0
	}
	if v.Type == intstr.Int {
		return int(v.IntVal)
	}
	var n int
	_, _ = fmt.Sscanf(strings.TrimSuffix(v.StrVal, "%"), "%d", &n)
	return n
}

func validateDeploymentStatus(d, old *appsv1.Deployment) field.ErrorList {
	path := field.NewPath("status")
	s := &d.Status
	errs := apivalidation.ValidateNonnegativeField(s.ObservedGeneration, path.Child("observedGeneration"))
	for _, f := range []struct {
		name string
		n    int32
	}{
		{"replicas", s.Replicas},
		{"updatedReplicas", s.UpdatedReplicas},
		{"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas},
		{"unavailableReplicas", s.UnavailableReplicas},
	} {
		errs = append(errs, nonNegative(f.n, path.Child(f.name))...)
	}
	const more = "cannot be greater than status.replicas"
	if s.UpdatedReplicas > s.Replicas {
		errs = append(errs, field.Invalid(path.Child("updatedReplicas"), s.UpdatedReplicas, more))
	}
	if s.ReadyReplicas > s.Replicas {
		errs = append(errs, field.Invalid(path.Child("readyReplicas"), s.ReadyReplicas, more))
	}
	if s.AvailableReplicas > s.Replicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), s.AvailableReplicas, more))
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), s.AvailableReplicas,
			"cannot be greater than readyReplicas"))
	}
	for _, f := range []struct {
		name string
		n    *int32
	}{{"terminatingReplicas", s.TerminatingReplicas}, {"collisionCount", s.CollisionCount}} {
		errs = append(errs, nonNegative(kind.Value(f.n), path.Child(f.name))...)
	}
	if was := old.Status.CollisionCount; was != nil && kind.Value(s.CollisionCount) < *was {
		errs = append(errs, field.Invalid(path.Child("collisionCount"), kind.Value(s.CollisionCount),
			"cannot be decremented"))
	}
	return errs
}
