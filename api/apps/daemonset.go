// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

// DaemonSet describes apps/v1 DaemonSet.
func DaemonSet(on gates.On) *kind.Kind {
	count := func(name, status string) metav1.TableColumnDefinition {
		return metav1.TableColumnDefinition{
			Name:        name,
			Type:        "integer",
			Description: appsv1.DaemonSetStatus{}.SwaggerDoc()[status],
		}
	}
	return kind.Spec[*appsv1.DaemonSet]{
		Names:         names("DaemonSet", "daemonsets", "daemonset", []string{"all"}, "ds"),
		New:           func() *appsv1.DaemonSet { return &appsv1.DaemonSet{} },
		NewList:       func() runtime.Object { return &appsv1.DaemonSetList{} },
		Default:       defaultDaemonSet,
		PrepareCreate: func(d *appsv1.DaemonSet) { createDaemonSet(d, on) },
		PrepareUpdate: func(d, old *appsv1.DaemonSet) { updateDaemonSet(d, old, on) },
		Validate: func(d *appsv1.DaemonSet) field.ErrorList {
			return append(meta.Finalizers(d), validateDaemonSpec(&d.Spec)...)
		},
		ValidateUpdate: func(d, old *appsv1.DaemonSet) field.ErrorList {
			l := check.At(field.NewPath("spec"))
			l.Add(validateDaemonSpec(&d.Spec)...)
			l.Immutable("selector", d.Spec.Selector, old.Spec.Selector)
			return l.Errors()
		},
		Warnings: func(d, old *appsv1.DaemonSet) []string {
			return templateWarnings(&d.Spec.Template,
				old == nil || !equality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template))
		},
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn,
			count("Desired", "desiredNumberScheduled"), count("Current", "currentNumberScheduled"),
			count("Ready", "numberReady"),
			count("Up-to-date", "updatedNumberScheduled"), count("Available", "numberAvailable"),
			{Name: "Node Selector", Type: "string", Description: corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]},
			kind.AgeColumn,
		}, podspec.TemplateColumns(appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"])...),
		Row: func(d *appsv1.DaemonSet) []any {
			s := &d.Status
			return append([]any{
				d.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady),
				int64(s.UpdatedNumberScheduled),
				int64(s.NumberAvailable), labels.FormatLabels(d.Spec.Template.Spec.NodeSelector),
				kind.Age(d.CreationTimestamp),
			}, podspec.TemplateCells(&d.Spec.Template, d.Spec.Selector)...)
		},
		Status: &kind.Sub[*appsv1.DaemonSet]{
			PrepareUpdate:  func(d, old *appsv1.DaemonSet) { d.Spec = old.Spec },
			ValidateUpdate: validateDaemonStatus,
		},
	}.Erase()
}

func defaultDaemonSet(set *appsv1.DaemonSet) {
	defaultTemplateGeneration(set)
	s := &set.Spec
	if s.UpdateStrategy.Type == "" {
		s.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		kind.Fill(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		kind.Fill(&s.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		kind.Fill(&s.UpdateStrategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	kind.Fill(&s.RevisionHistoryLimit, 10)
	podspec.DefaultTemplate(&s.Template)
	if _, ok := set.Annotations[appsv1.DeprecatedTemplateGeneration]; !ok { // who writes a DaemonSet owns it too
		setTemplateGeneration(set, 0)
	}
}

func createDaemonSet(d *appsv1.DaemonSet, on gates.On) {
	d.Generation = 1
	d.Status = appsv1.DaemonSetStatus{}
	setTemplateGeneration(d, max(templateGeneration(d), 1))
	podspec.DropDisabled(&d.Spec.Template.Spec, nil, on)
}

// updateDaemonSet also keeps the template's own generation, which old clients find in an annotation.
func updateDaemonSet(set, old *appsv1.DaemonSet, on gates.On) {
	set.Status = old.Status
	set.Generation = old.Generation
	podspec.DropDisabled(&set.Spec.Template.Spec, &old.Spec.Template.Spec, on)
	n := templateGeneration(old)
	switch {
	case !equality.Semantic.DeepEqual(set.Spec.Template, old.Spec.Template):
		n++
		set.Generation++
	case !equality.Semantic.DeepEqual(set.Spec, old.Spec):
		set.Generation++
	}
	setTemplateGeneration(set, n)
}

// defaultTemplateGeneration: the annotation is always there, and no one's but the writer's.
func defaultTemplateGeneration(d *appsv1.DaemonSet) { setTemplateGeneration(d, templateGeneration(d)) }

func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	a := maps.Clone(d.Annotations)
	if a == nil {
		a = map[string]string{}
	}
	a[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
	d.Annotations = a
}

func validateDaemonSpec(daemonSetSpec *appsv1.DaemonSetSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.At(path)
	errs.Add(metavalidation.ValidateLabelSelector(daemonSetSpec.Selector,
		metavalidation.LabelSelectorValidationOptions{},
		path.Child("selector"))...)
	if sel, err := metav1.LabelSelectorAsSelector(daemonSetSpec.Selector); err == nil &&
		!sel.Matches(labels.Set(daemonSetSpec.Template.Labels)) {
		errs.Add(field.Invalid(path.Child("template", "metadata", "labels"), daemonSetSpec.Template.Labels,
			"`selector` does not match template `labels`"))
	}
	if sel := daemonSetSpec.Selector; sel != nil && len(sel.MatchLabels)+len(sel.MatchExpressions) == 0 {
		errs.Invalid("selector", sel, "empty selector is invalid for daemonset")
	}
	errs.Add(podspec.ValidateTemplate(&daemonSetSpec.Template, path.Child("template"))...)
	errs.Add(foreverErrors(&daemonSetSpec.Template, path.Child("template"), "DaemonSet")...)
	errs.NotNegative("minReadySeconds", int64(daemonSetSpec.MinReadySeconds))
	errs.Within("updateStrategy", func() { validateDaemonStrategy(errs, &daemonSetSpec.UpdateStrategy) })
	check.NotNegatives(errs, check.NamedNumber[int32]{
		Name:  "revisionHistoryLimit",
		Value: daemonSetSpec.RevisionHistoryLimit,
	})
	return errs.Errors()
}

func validateDaemonStrategy(l *check.List, s *appsv1.DaemonSetUpdateStrategy) {
	switch s.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		if s.RollingUpdate == nil {
			l.Required("rollingUpdate", "")
			return
		}
		l.Within("rollingUpdate", func() { validateRollingDaemon(l, s.RollingUpdate) })
	default:
		check.NotSupported(l, "type", s.Type, appsv1.RollingUpdateDaemonSetStrategyType,
			appsv1.OnDeleteDaemonSetStrategyType)
	}
}

func validateRollingDaemon(errs *check.List, rollingUpdateDaemonSet *appsv1.RollingUpdateDaemonSet) {
	unavailable := amount(rollingUpdateDaemonSet.MaxUnavailable)
	surge := amount(rollingUpdateDaemonSet.MaxSurge)
	errs.Add(validateIntOrPercent(rollingUpdateDaemonSet.MaxUnavailable, errs.Path("maxUnavailable"))...)
	errs.Add(validateIntOrPercent(rollingUpdateDaemonSet.MaxSurge, errs.Path("maxSurge"))...)
	switch {
	case unavailable != 0 && surge != 0:
		errs.Invalid("maxSurge", rollingUpdateDaemonSet.MaxSurge, "may not be set when maxUnavailable is non-zero")
	case unavailable == 0 && surge == 0:
		errs.Required("maxUnavailable", "cannot be 0 when maxSurge is 0")
	}
	atMostAll(errs, "maxUnavailable", rollingUpdateDaemonSet.MaxUnavailable)
	atMostAll(errs, "maxSurge", rollingUpdateDaemonSet.MaxSurge)
}

// atMostAll refuses more than 100 %.
func atMostAll(l *check.List, child string, v *intstr.IntOrString) {
	if v != nil && strings.HasSuffix(v.StrVal, "%") && amount(v) > 100 {
		l.Invalid(child, v, "must not be greater than 100%")
	}
}

func validateDaemonStatus(d, old *appsv1.DaemonSet) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	status := &d.Status
	number := func(name string, n *int32) check.NamedNumber[int32] {
		return check.NamedNumber[int32]{Name: name, Value: n}
	}
	check.NotNegatives(errs, number("currentNumberScheduled", &status.CurrentNumberScheduled),
		number("numberMisscheduled", &status.NumberMisscheduled),
		number("desiredNumberScheduled", &status.DesiredNumberScheduled), number("numberReady", &status.NumberReady))
	errs.NotNegative("observedGeneration", status.ObservedGeneration)
	check.NotNegatives(errs, number("updatedNumberScheduled", &status.UpdatedNumberScheduled),
		number("numberAvailable", &status.NumberAvailable),
		number("numberUnavailable", &status.NumberUnavailable), number("collisionCount", status.CollisionCount))
	if was := old.Status.CollisionCount; was != nil && kind.Value(status.CollisionCount) < *was {
		errs.Invalid("collisionCount", kind.Value(status.CollisionCount), "cannot be decremented")
	}
	return errs.Errors()
}

// templateWarnings warns of t, which is new or changed if so said.
func templateWarnings(t *corev1.PodTemplateSpec, changed bool) []string {
	if !changed {
		return nil
	}
	return podspec.TemplateWarnings(t, field.NewPath("spec", "template"))
}
