// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"slices"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

type (
	workload = schedulingv1beta1.Workload
	template = schedulingv1beta1.PodGroupTemplate
)

// Workload describes scheduling.k8s.io/v1beta1 Workload: templates of groups, for controllers. Nothing here acts on it.
func Workload() *kind.Kind {
	return kind.Spec[*workload]{
		Names:                 groupNames("Workload", "workloads", "workload"),
		New:                   func() *workload { return &workload{} },
		NewList:               func() runtime.Object { return &schedulingv1beta1.WorkloadList{} },
		PrepareCreate:         func(w *workload) { dropFromWorkload(&w.Spec, &schedulingv1beta1.WorkloadSpec{}) },
		PrepareUpdate:         func(w, old *workload) { dropFromWorkload(&w.Spec, &old.Spec) },
		Validate:              func(w *workload) field.ErrorList { return validateWorkload(w, nil) },
		ValidateUpdate:        validateWorkload,
		NoUnconditionalUpdate: true,
	}.Erase()
}

// dropFromWorkload goes by the places of templates, as they cannot be reordered for another.
func dropFromWorkload(s, old *schedulingv1beta1.WorkloadSpec) {
	if len(old.CompositePodGroupTemplates) == 0 {
		s.CompositePodGroupTemplates = nil
	}
	for i := range s.PodGroupTemplates {
		t := &s.PodGroupTemplates[i]
		was := &template{}
		if i < len(old.PodGroupTemplates) {
			was = &old.PodGroupTemplates[i]
		}
		if was.SchedulingConstraints == nil {
			t.SchedulingConstraints = nil
		}
		if len(was.ResourceClaims) == 0 {
			t.ResourceClaims = nil
		}
		if was.PreemptionPolicy == nil {
			t.PreemptionPolicy = nil
		}
	}
}

// validateWorkload checks a new workload, or with old what has changed of one.
func validateWorkload(w, old *workload) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	errs.Add(meta.Finalizers(w)...)
	workloadSpec := &w.Spec
	for i := range workloadSpec.PodGroupTemplates {
		if a, b := &workloadSpec.PodGroupTemplates[0],
			&workloadSpec.PodGroupTemplates[i]; a.PriorityClassName != b.PriorityClassName ||
			!equality.Semantic.DeepEqual(a.Priority, b.Priority) {
			errs.Add(field.Invalid(errs.Path(""), nil, "detected multiple priority configurations"))
			break
		}
	}
	if old == nil {
		oneOf(errs, member{"podGroupTemplates", len(workloadSpec.PodGroupTemplates) > 0},
			member{"compositePodGroupTemplates", len(workloadSpec.CompositePodGroupTemplates) > 0})
		if ref := workloadSpec.ControllerRef; ref != nil {
			errs.Within("controllerRef", func() {
				if ref.APIGroup != "" {
					check.Format(errs, "apiGroup", ref.APIGroup, validate.LongName)
				}
				required(errs, "kind", ref.Kind, validate.PathSegmentName)
				required(errs, "name", ref.Name, validate.PathSegmentName)
			})
		}
		validateTemplates(errs, workloadSpec.PodGroupTemplates, nil)
		return errs.Errors()
	}
	errs.Fixed("controllerRef", equality.Semantic.DeepEqual(workloadSpec.ControllerRef, old.Spec.ControllerRef))
	errs.Fixed("compositePodGroupTemplates", equality.Semantic.DeepEqual(workloadSpec.CompositePodGroupTemplates,
		old.Spec.CompositePodGroupTemplates))
	if !equality.Semantic.DeepEqual(workloadSpec.PodGroupTemplates, old.Spec.PodGroupTemplates) &&
		sameTemplates(errs, workloadSpec.PodGroupTemplates, old.Spec.PodGroupTemplates) {
		validateTemplates(errs, workloadSpec.PodGroupTemplates, old.Spec.PodGroupTemplates)
	}
	return errs.Errors()
}

func called(name string) func(template) bool { return func(t template) bool { return t.Name == name } }

// sameTemplates reports templates that have come or gone.
func sameTemplates(errs *check.List, now, old []template) bool {
	before := errs.Len()
	for i := range now {
		if !slices.ContainsFunc(old, called(now[i].Name)) {
			errs.Declared(field.Forbidden(errs.Path("podGroupTemplates").Index(i), "item may not be added"))
		}
	}
	for i := range old {
		if !slices.ContainsFunc(now, called(old[i].Name)) {
			errs.Declared(field.Forbidden(errs.Path("podGroupTemplates"), "item may not be removed"))
		}
	}
	return errs.Len() == before
}

func validateTemplates(errs *check.List, now, old []template) {
	if len(now) > schedulingv1beta1.WorkloadMaxPodGroupTemplates {
		errs.Declared(field.TooMany(errs.Path("podGroupTemplates"), len(now),
			schedulingv1beta1.WorkloadMaxPodGroupTemplates))
		return
	}
	check.Each(errs, "podGroupTemplates", now, func(i int, t *template) {
		if slices.ContainsFunc(now[:i], called(t.Name)) {
			errs.Declared(field.Duplicate(errs.Path(""), *t))
		}
		var was *group
		if j := slices.IndexFunc(old, called(t.Name)); j >= 0 {
			o := &old[j]
			was = &group{&o.SchedulingPolicy, o.DisruptionMode, o.PriorityClassName, o.Priority}
			errs.Fixed("schedulingConstraints", equality.Semantic.DeepEqual(t.SchedulingConstraints,
				o.SchedulingConstraints))
			errs.Fixed("resourceClaims", equality.Semantic.DeepEqual(t.ResourceClaims, o.ResourceClaims))
			errs.Fixed("preemptionPolicy", equality.Semantic.DeepEqual(t.PreemptionPolicy, o.PreemptionPolicy))
		} else {
			required(errs, "name", t.Name, validate.ShortName)
		}
		validateGroup(errs, &group{&t.SchedulingPolicy, t.DisruptionMode, t.PriorityClassName, t.Priority}, was)
	})
}
