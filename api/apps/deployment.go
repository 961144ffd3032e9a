// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"fmt"
	"strconv"
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
	"keelson/api/invalid"
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
	deploymentSpec := &d.Spec
	def(&deploymentSpec.Replicas, 1)
	if deploymentSpec.Strategy.Type == "" {
		deploymentSpec.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if deploymentSpec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		def(&deploymentSpec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		def(&deploymentSpec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		def(&deploymentSpec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	def(&deploymentSpec.RevisionHistoryLimit, 10)
	def(&deploymentSpec.ProgressDeadlineSeconds, 600)
	podspec.DefaultTemplate(&deploymentSpec.Template)
}

func validateDeploymentSpec(deploymentSpec *appsv1.DeploymentSpec, path *field.Path) field.ErrorList {
	errs := nonNegative(replicas(deploymentSpec.Replicas), path.Child("replicas"))
	sel, more := validateSelector(deploymentSpec.Selector, path.Child("selector"), "deployment")
	errs = append(errs, more...)
	errs = append(errs, validateTemplate(&deploymentSpec.Template, sel, path.Child("template"), "ReplicaSet")...)
	errs = append(errs, validateStrategy(&deploymentSpec.Strategy, path.Child("strategy"))...)
	errs = append(errs, nonNegative(deploymentSpec.MinReadySeconds, path.Child("minReadySeconds"))...)
	if deploymentSpec.RevisionHistoryLimit != nil {
		errs = append(errs, nonNegative(*deploymentSpec.RevisionHistoryLimit, path.Child("revisionHistoryLimit"))...)
	}
	if deploymentSpec.ProgressDeadlineSeconds != nil {
		p := path.Child("progressDeadlineSeconds")
		errs = append(errs, nonNegative(*deploymentSpec.ProgressDeadlineSeconds, p)...)
		if *deploymentSpec.ProgressDeadlineSeconds <= deploymentSpec.MinReadySeconds {
			errs = append(errs, field.Invalid(p, *deploymentSpec.ProgressDeadlineSeconds,
				"must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateStrategy(strategy *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	switch strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if strategy.RollingUpdate != nil {
			return field.ErrorList{
				field.Forbidden(path.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'"),
			}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		if strategy.RollingUpdate == nil {
			return field.ErrorList{
				field.Required(path.Child("rollingUpdate"), "this should be defaulted and never be nil"),
			}
		}
		return validateRolling(strategy.RollingUpdate, path.Child("rollingUpdate"))
	}
	return field.ErrorList{field.NotSupported(path, strategy,
		[]appsv1.DeploymentStrategyType{
			appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType,
		})}
}

func validateRolling(deployment *appsv1.RollingUpdateDeployment, path *field.Path) field.ErrorList {
	un := path.Child("maxUnavailable")
	surge := path.Child("maxSurge")
	errs := validateIntOrPercent(deployment.MaxUnavailable, un)
	errs = append(errs, validateIntOrPercent(deployment.MaxSurge, surge)...)
	if amount(deployment.MaxUnavailable) == 0 && amount(deployment.MaxSurge) == 0 {
		errs = append(errs, field.Invalid(un, deployment.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
	}
	if deployment.MaxUnavailable != nil && strings.HasSuffix(deployment.MaxUnavailable.StrVal, "%") &&
		amount(deployment.MaxUnavailable) > 100 {
		errs = append(errs, field.Invalid(un, deployment.MaxUnavailable, "must not be greater than 100%"))
	}
	return errs
}

func validateIntOrPercent(intOrString *intstr.IntOrString, path *field.Path) field.ErrorList {
	if intOrString == nil {
		return nil
	}
	if intOrString.Type == intstr.String {
		var errs field.ErrorList
		for _, msg := range validation.IsValidPercent(intOrString.StrVal) {
			errs = invalid.Append(errs, field.Invalid(path, intOrString, msg))
		}
		return errs
	}
	return nonNegative(intOrString.IntVal, path)
}

// amount is the number in "25%" or 25.
func amount(v *intstr.IntOrString) int {
	if v == nil {
		return 0
	}
	if v.Type == intstr.Int {
		return int(v.IntVal)
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	if err != nil {
		return 0
	}
	return n
}

func validateDeploymentStatus(d, old *appsv1.Deployment) field.ErrorList {
	path := field.NewPath("status")
	status := &d.Status
	errs := apivalidation.ValidateNonnegativeField(status.ObservedGeneration, path.Child("observedGeneration"))
	for _, f := range []struct {
		name string
		n    int32
	}{
		{"replicas", status.Replicas},
		{"updatedReplicas", status.UpdatedReplicas},
		{"readyReplicas", status.ReadyReplicas},
		{"availableReplicas", status.AvailableReplicas},
		{"unavailableReplicas", status.UnavailableReplicas},
	} {
		errs = invalid.Append(errs, nonNegative(f.n, path.Child(f.name))...)
	}
	const more = "cannot be greater than status.replicas"
	if status.UpdatedReplicas > status.Replicas {
		errs = append(errs, field.Invalid(path.Child("updatedReplicas"), status.UpdatedReplicas, more))
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
	for _, f := range []struct {
		name string
		n    *int32
	}{{"terminatingReplicas", status.TerminatingReplicas}, {"collisionCount", status.CollisionCount}} {
		errs = invalid.Append(errs, nonNegative(kind.Value(f.n), path.Child(f.name))...)
	}
	if was := old.Status.CollisionCount; was != nil && kind.Value(status.CollisionCount) < *was {
		errs = append(errs, field.Invalid(path.Child("collisionCount"), kind.Value(status.CollisionCount),
			"cannot be decremented"))
	}
	return errs
}
