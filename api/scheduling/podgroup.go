// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

// PodGroupProtection is the finalizer that keeps a group while pods belong to it.
const PodGroupProtection = "scheduling.k8s.io/podgroup-protection"

type podGroup = schedulingv1beta1.PodGroup

// PodGroup describes scheduling.k8s.io/v1beta1 PodGroup.
func PodGroup() *kind.Kind {
	return kind.Spec[*podGroup]{
		Names:   groupNames("PodGroup", "podgroups", "podgroup"),
		New:     func() *podGroup { return &podGroup{} },
		NewList: func() runtime.Object { return &schedulingv1beta1.PodGroupList{} },
		Default: func(g *podGroup) {
			if g.Spec.DisruptionMode == nil {
				g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{
					Single: &schedulingv1beta1.SingleDisruptionMode{},
				}
			}
		},
		PrepareCreate: func(g *podGroup) {
			g.Status = schedulingv1beta1.PodGroupStatus{}
			dropFromGroup(&g.Spec, &schedulingv1beta1.PodGroupSpec{})
		},
		PrepareUpdate: func(g, old *podGroup) {
			g.Status = old.Status
			dropFromGroup(&g.Spec, &old.Spec)
		},
		Validate:              func(g *podGroup) field.ErrorList { return validatePodGroup(g, nil) },
		ValidateUpdate:        validatePodGroup,
		NoUnconditionalUpdate: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{
				Name:        "Policy",
				Type:        "string",
				Description: schedulingv1beta1.PodGroupSpec{}.SwaggerDoc()["schedulingPolicy"],
			},
			{Name: "Workload", Type: "string", Description: "Name of the referenced Workload object"},
			{Name: "Status", Type: "string", Description: "Status of the PodGroup"},
			kind.AgeColumn,
		},
		Row: podGroupRow,
		Status: &kind.Sub[*podGroup]{
			PrepareUpdate: func(g, old *podGroup) {
				g.Spec = old.Spec
				meta.KeepForStatus(g, old)
				if len(old.Spec.ResourceClaims) == 0 {
					g.Status.ResourceClaimStatuses = nil
				}
			},
			ValidateUpdate: func(g, _ *podGroup) field.ErrorList {
				return metavalidation.ValidateConditions(g.Status.Conditions, field.NewPath("status", "conditions"))
			},
		},
	}.Erase()
}

func podGroupRow(g *podGroup) []any {
	policy := "Basic"
	workload := ""
	status := "Pending"
	if g.Spec.SchedulingPolicy.Gang != nil {
		policy = "Gang"
	}
	if ref := g.Spec.WorkloadRef; ref != nil {
		workload = ref.WorkloadName
	}
	if c := apimeta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled); c != nil {
		status = "Unschedulable"
		if c.Status == metav1.ConditionTrue {
			status = "Scheduled"
		}
	}
	if c := apimeta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.DisruptionTarget); c != nil {
		status = c.Reason
	}
	return []any{g.Name, policy, kind.OrNone(workload), status, kind.Age(g.CreationTimestamp)}
}

func dropFromGroup(podGroupSpec, old *schedulingv1beta1.PodGroupSpec) {
	if old.SchedulingConstraints == nil {
		podGroupSpec.SchedulingConstraints = nil
	}
	if len(old.ResourceClaims) == 0 {
		podGroupSpec.ResourceClaims = nil
	}
	if old.PreemptionPolicy == nil {
		podGroupSpec.PreemptionPolicy = nil
	}
	if old.ParentCompositePodGroupName == nil {
		podGroupSpec.ParentCompositePodGroupName = nil
	}
}

// validatePodGroup checks a new group, or with old what has changed of one.
func validatePodGroup(g, old *podGroup) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	errs.Add(meta.Finalizers(g)...)
	podGroupSpec := &g.Spec
	this := &group{
		&podGroupSpec.SchedulingPolicy, podGroupSpec.DisruptionMode, podGroupSpec.PriorityClassName,
		podGroupSpec.Priority,
	}
	if old != nil {
		o := &old.Spec
		errs.Fixed("parentCompositePodGroupName", equality.Semantic.DeepEqual(podGroupSpec.ParentCompositePodGroupName,
			o.ParentCompositePodGroupName))
		errs.Fixed("workloadRef", equality.Semantic.DeepEqual(podGroupSpec.WorkloadRef, o.WorkloadRef))
		errs.Fixed("schedulingConstraints", equality.Semantic.DeepEqual(podGroupSpec.SchedulingConstraints,
			o.SchedulingConstraints))
		errs.Fixed("resourceClaims", equality.Semantic.DeepEqual(podGroupSpec.ResourceClaims, o.ResourceClaims))
		errs.Fixed("preemptionPolicy", equality.Semantic.DeepEqual(podGroupSpec.PreemptionPolicy, o.PreemptionPolicy))
		validateGroup(errs, this, &group{&o.SchedulingPolicy, o.DisruptionMode, o.PriorityClassName, o.Priority})
		return errs.Errors()
	}
	if ref := podGroupSpec.WorkloadRef; ref != nil {
		errs.Within("workloadRef", func() {
			required(errs, "workloadName", ref.WorkloadName, validate.LongName)
			required(errs, "templateName", ref.TemplateName, validate.ShortName)
		})
	}
	validateGroup(errs, this, nil)
	return errs.Errors()
}

// required wants a value of a declared format.
func required(l *check.List, child, value string, f check.Form[string]) {
	if value == "" {
		l.Missing(child)
		return
	}
	check.Format(l, child, value, f)
}
