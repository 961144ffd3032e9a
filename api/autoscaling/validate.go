// SPDX-License-Identifier: Apache-2.0

package autoscaling

import (
	"slices"

	scalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/meta"
)

const (
	maxWindow = 3600 // seconds
	maxPeriod = 1800 // seconds
)

// leniency is what an update may keep that a new object may not have.
type leniency struct {
	anyTarget  bool // the target's apiVersion need not be one
	anyMetrics bool // nor those of the objects of metrics
}

func validateScaler(h *scaler) field.ErrorList { return scalerErrors(h, leniency{}) }

func validateScalerUpdate(h, old *scaler) field.ErrorList {
	var may leniency
	now := h.Spec.ScaleTargetRef
	was := old.Spec.ScaleTargetRef
	may.anyTarget = now.APIVersion == was.APIVersion && now.Kind == was.Kind
	may.anyMetrics = slices.ContainsFunc(old.Spec.Metrics, func(m scalingv2.MetricSpec) bool {
		return m.Type == scalingv2.ObjectMetricSourceType && m.Object != nil &&
			badVersion(m.Object.DescribedObject.APIVersion, true) != ""
	})
	return scalerErrors(h, may)
}

// badVersion says what is wrong with the apiVersion of a reference; the core group has no name.
func badVersion(apiVersion string, core bool) string {
	gv, err := schema.ParseGroupVersion(apiVersion)
	switch {
	case err != nil:
		return err.Error()
	case gv.Group == "" && !core:
		return "apiVersion must specify API group"
	}
	return ""
}

func scalerErrors(h *scaler, may leniency) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(h)...)
	errs.In("spec")
	spec := &h.Spec
	if n := spec.MinReplicas; n != nil && *n < 0 { // zero is HPAScaleToZero's, which is on
		errs.Add(field.Invalid(errs.Path("minReplicas"), *n, "must be greater than or equal to 0").MarkBeta())
	}
	switch {
	case spec.MaxReplicas == 0:
		errs.Add(field.Required(errs.Path("maxReplicas"), "").MarkBeta())
	case spec.MaxReplicas < 0:
		errs.Add(field.Invalid(errs.Path("maxReplicas"), spec.MaxReplicas, "must be greater than or equal to 1").
			MarkBeta())
	}
	if spec.MinReplicas != nil && spec.MaxReplicas < *spec.MinReplicas {
		errs.Invalid("maxReplicas", spec.MaxReplicas, "must be greater than or equal to `minReplicas`")
	}
	errs.Within("scaleTargetRef", func() {
		validateReference(errs, &spec.ScaleTargetRef, may.anyTarget,
			spec.ScaleTargetRef.Kind == "ReplicationController")
	})
	fromZero := false
	check.Each(errs, "metrics", spec.Metrics, func(_ int, m *scalingv2.MetricSpec) {
		fromZero = fromZero || m.Type == scalingv2.ObjectMetricSourceType ||
			m.Type == scalingv2.ExternalMetricSourceType
		validateMetric(errs, m, may)
	})
	if spec.MinReplicas != nil && *spec.MinReplicas == 0 && !fromZero {
		errs.Forbidden("metrics", "must specify at least one Object or External metric to support scaling to zero "+
			"replicas")
	}
	if b := spec.Behavior; b != nil {
		errs.In("behavior")
		validateScaling(errs, "scaleUp", b.ScaleUp)
		validateScaling(errs, "scaleDown", b.ScaleDown)
		errs.Out()
	}
	return errs.Errors()
}

// validateReference checks a reference. anyVersion leaves its apiVersion alone; core lets that name no group.
func validateReference(l *check.List, r *scalingv2.CrossVersionObjectReference, anyVersion, core bool) {
	segment(l, "kind", r.Kind, "")
	segment(l, "name", r.Name, "")
	if msg := badVersion(r.APIVersion, core); msg != "" && !anyVersion {
		l.Invalid("apiVersion", r.APIVersion, msg)
	}
}

// segment wants a part of a path; missing says what is wrong with none.
func segment(l *check.List, child, v, missing string) {
	if v == "" {
		l.Required(child, missing)
		return
	}
	for _, msg := range content.IsPathSegmentName(v) {
		l.Invalid(child, v, msg)
	}
}

var metricTypes = []scalingv2.MetricSourceType{
	scalingv2.ContainerResourceMetricSourceType, scalingv2.ExternalMetricSourceType, scalingv2.ObjectMetricSourceType,
	scalingv2.PodsMetricSourceType, scalingv2.ResourceMetricSourceType,
}

func validateMetric(errs *check.List, metricSpec *scalingv2.MetricSpec, may leniency) {
	if metricSpec.Type == "" {
		errs.Required("type", "must specify a metric source type")
	}
	if !slices.Contains(metricTypes, metricSpec.Type) {
		check.NotSupported(errs, "type", metricSpec.Type, metricTypes...)
	}
	sources := []struct {
		of      scalingv2.MetricSourceType
		child   string
		present bool
		check   func()
	}{
		{scalingv2.ObjectMetricSourceType, "object", metricSpec.Object != nil, func() {
			validateObject(errs, metricSpec.Object, may)
		}},
		{scalingv2.ExternalMetricSourceType, "external", metricSpec.External != nil, func() {
			validateExternal(errs, metricSpec.External)
		}},
		{
			scalingv2.PodsMetricSourceType, "pods", metricSpec.Pods != nil, func() {
				validatePods(errs, metricSpec.Pods)
			},
		},
		{scalingv2.ResourceMetricSourceType, "resource", metricSpec.Resource != nil, func() {
			validateResource(errs, metricSpec.Resource)
		}},
		{
			scalingv2.ContainerResourceMetricSourceType, "containerResource", metricSpec.ContainerResource != nil,
			func() { validateContainer(errs, metricSpec.ContainerResource) },
		},
	}
	first := true
	for _, s := range sources {
		if s.present && first {
			errs.Within(s.child, s.check)
			first = false
		}
		if s.of == metricSpec.Type && !s.present {
			errs.Required(s.child, "must populate information for the given metric source")
		}
	}
	if !slices.Contains(metricTypes, metricSpec.Type) {
		check.NotSupported(errs, "type", metricSpec.Type, metricTypes...)
	}
	n := 0
	for _, s := range sources {
		if s.present {
			n++
		}
	}
	for _, s := range sources {
		if s.of != metricSpec.Type && s.present && n > 1 {
			errs.Forbidden(s.child, "must populate the given metric source only")
		}
	}
}

func validateObject(l *check.List, o *scalingv2.ObjectMetricSource, may leniency) {
	l.Within("describedObject", func() { validateReference(l, &o.DescribedObject, may.anyMetrics, true) })
	validateIdentifier(l, &o.Metric)
	validateTarget(l, &o.Target)
	if o.Target.Value == nil && o.Target.AverageValue == nil {
		l.Within("target", func() { l.Required("averageValue", "must set either a target value or averageValue") })
	}
}

func validateExternal(l *check.List, e *scalingv2.ExternalMetricSource) {
	validateIdentifier(l, &e.Metric)
	validateTarget(l, &e.Target)
	if e.Target.Value == nil && e.Target.AverageValue == nil {
		l.Within("target", func() {
			l.Required("averageValue", "must set either a target value for metric or a per-pod target")
		})
	}
	if e.Target.Value != nil && e.Target.AverageValue != nil {
		l.Within("target", func() {
			l.Forbidden("value", "may not set both a target value for metric and a per-pod target")
		})
	}
}

func validatePods(l *check.List, p *scalingv2.PodsMetricSource) {
	validateIdentifier(l, &p.Metric)
	validateTarget(l, &p.Target)
	if p.Target.AverageValue == nil {
		l.Within("target", func() { l.Required("averageValue", "must specify a positive target averageValue") })
	}
}

func validateContainer(errs *check.List, source *scalingv2.ContainerResourceMetricSource) {
	if source.Name == "" {
		errs.Required("name", "must specify a resource name")
	} else {
		errs.In("name")
		podspec.ContainerResourceName(errs, source.Name)
		errs.Out()
	}
	if source.Container == "" {
		errs.Required("container", "must specify a container")
	} else {
		errs.Label("container", source.Container)
	}
	validateUse(errs, &source.Target)
}

func validateResource(l *check.List, r *scalingv2.ResourceMetricSource) {
	if r.Name == "" {
		l.Required("name", "must specify a resource name")
	}
	validateUse(l, &r.Target)
}

// validateUse checks a target that is an amount or a share of what is asked for.
func validateUse(l *check.List, t *scalingv2.MetricTarget) {
	validateTarget(l, t)
	l.Within("target", func() {
		switch {
		case t.AverageUtilization == nil && t.AverageValue == nil:
			l.Required("averageUtilization", "must set either a target raw value or a target utilization")
		case t.AverageUtilization != nil && t.AverageValue != nil:
			l.Forbidden("averageValue", "may not set both a target raw value and a target utilization")
		}
	})
}

func validateTarget(errs *check.List, metricTarget *scalingv2.MetricTarget) {
	errs.In("target")
	defer errs.Out()
	types := []scalingv2.MetricTargetType{
		scalingv2.UtilizationMetricType, scalingv2.ValueMetricType, scalingv2.AverageValueMetricType,
	}
	if metricTarget.Type == "" {
		errs.Required("type", "must specify a metric target type")
	}
	if !slices.Contains(types, metricTarget.Type) {
		errs.Invalid("type", metricTarget.Type, "must be either Utilization, Value, or AverageValue")
	}
	positive := func(child string, q *resource.Quantity) {
		if q != nil && q.Sign() != 1 {
			errs.Invalid(child, q, "must be positive")
		}
	}
	positive("value", metricTarget.Value)
	positive("averageValue", metricTarget.AverageValue)
	if n := metricTarget.AverageUtilization; n != nil && *n < 1 {
		errs.Invalid("averageUtilization", *n, "must be greater than 0")
	}
}

func validateIdentifier(l *check.List, m *scalingv2.MetricIdentifier) {
	l.Within("metric", func() { segment(l, "name", m.Name, "must specify a metric name") })
}

func validateScaling(errs *check.List, child string, rules *scalingv2.HPAScalingRules) {
	if rules == nil {
		return
	}
	errs.In(child)
	defer errs.Out()
	if n := rules.StabilizationWindowSeconds; n != nil && *n < 0 {
		errs.Invalid("stabilizationWindowSeconds", *n, "must be greater than or equal to zero")
	} else if n != nil && *n > maxWindow {
		errs.Invalid("stabilizationWindowSeconds", *n, "must be less than or equal to 3600")
	}
	check.Pointer(errs, "selectPolicy", rules.SelectPolicy, scalingv2.DisabledPolicySelect,
		scalingv2.MaxChangePolicySelect,
		scalingv2.MinChangePolicySelect)
	if len(rules.Policies) == 0 {
		errs.Required("policies", "must specify at least one Policy")
	}
	check.Each(errs, "policies", rules.Policies, func(_ int, p *scalingv2.HPAScalingPolicy) {
		check.Pointer(errs, "type", &p.Type, scalingv2.PercentScalingPolicy, scalingv2.PodsScalingPolicy)
		if p.Value <= 0 {
			errs.Invalid("value", p.Value, "must be greater than zero")
		}
		if p.PeriodSeconds <= 0 {
			errs.Invalid("periodSeconds", p.PeriodSeconds, "must be greater than zero")
		} else if p.PeriodSeconds > maxPeriod {
			errs.Invalid("periodSeconds", p.PeriodSeconds, "must be less than or equal to 1800")
		}
	})
	if t := rules.Tolerance; t != nil && t.Sign() < 0 {
		errs.Invalid("tolerance", t.String(), "must be greater than or equal to 0")
	}
}

func validateScalerStatus(h *scaler) field.ErrorList {
	l := check.At(field.NewPath("status"))
	l.NotNegative("currentReplicas", int64(h.Status.CurrentReplicas))
	l.NotNegative("desiredReplicas", int64(h.Status.DesiredReplicas))
	return l.Errors()
}
