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
	l := check.At(nil)
	l.Add(meta.Finalizers(h)...)
	l.In("spec")
	s := &h.Spec
	if n := s.MinReplicas; n != nil && *n < 0 { // zero is HPAScaleToZero's, which is on
		l.Add(field.Invalid(l.Path("minReplicas"), *n, "must be greater than or equal to 0").MarkBeta())
	}
	switch {
	case s.MaxReplicas == 0:
		l.Add(field.Required(l.Path("maxReplicas"), "").MarkBeta())
	case s.MaxReplicas < 0:
		l.Add(field.Invalid(l.Path("maxReplicas"), s.MaxReplicas, "must be greater than or equal to 1").MarkBeta())
	}
	if s.MinReplicas != nil && s.MaxReplicas < *s.MinReplicas {
		l.Invalid("maxReplicas", s.MaxReplicas, "must be greater than or equal to `minReplicas`")
	}
	l.Within("scaleTargetRef", func() {
		validateReference(l, &s.ScaleTargetRef, may.anyTarget, s.ScaleTargetRef.Kind == "ReplicationController")
	})
	fromZero := false
	check.Each(l, "metrics", s.Metrics, func(_ int, m *scalingv2.MetricSpec) {
		fromZero = fromZero || m.Type == scalingv2.ObjectMetricSourceType ||
			m.Type == scalingv2.ExternalMetricSourceType
		validateMetric(l, m, may)
	})
	if s.MinReplicas != nil && *s.MinReplicas == 0 && !fromZero {
		l.Forbidden("metrics", "must specify at least one Object or External metric to support scaling to zero "+
			"replicas")
	}
	if b := s.Behavior; b != nil {
		l.In("behavior")
		validateScaling(l, "scaleUp", b.ScaleUp)
		validateScaling(l, "scaleDown", b.ScaleDown)
		l.Out()
	}
	return l.Errors()
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

func validateMetric(l *check.List, m *scalingv2.MetricSpec, may leniency) {
	if m.Type == "" {
		l.Required("type", "must specify a metric source type")
	}
	if !slices.Contains(metricTypes, m.Type) {
		check.NotSupported(l, "type", m.Type, metricTypes...)
	}
	sources := []struct {
		of      scalingv2.MetricSourceType
		child   string
		present bool
		check   func()
	}{
		{scalingv2.ObjectMetricSourceType, "object", m.Object != nil, func() { validateObject(l, m.Object, may) }},
		{scalingv2.ExternalMetricSourceType, "external", m.External != nil, func() { validateExternal(l, m.External) }},
		{scalingv2.PodsMetricSourceType, "pods", m.Pods != nil, func() { validatePods(l, m.Pods) }},
		{scalingv2.ResourceMetricSourceType, "resource", m.Resource != nil, func() { validateResource(l, m.Resource) }},
		{
			scalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil,
			func() { validateContainer(l, m.ContainerResource) },
		},
	}
	first := true
	for _, s := range sources {
		if s.present && first {
			l.Within(s.child, s.check)
			first = false
		}
		if s.of == m.Type && !s.present {
			l.Required(s.child, "must populate information for the given metric source")
		}
	}
	if !slices.Contains(metricTypes, m.Type) {
		check.NotSupported(l, "type", m.Type, metricTypes...)
	}
	n := 0
	for _, s := range sources {
		if s.present {
			n++
		}
	}
	for _, s := range sources {
		if s.of != m.Type && s.present && n > 1 {
			l.Forbidden(s.child, "must populate the given metric source only")
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

func validateContainer(l *check.List, c *scalingv2.ContainerResourceMetricSource) {
	if c.Name == "" {
		l.Required("name", "must specify a resource name")
	} else {
		l.In("name")
		podspec.ContainerResourceName(l, c.Name)
		l.Out()
	}
	if c.Container == "" {
		l.Required("container", "must specify a container")
	} else {
		l.Label("container", c.Container)
	}
	validateUse(l, &c.Target)
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

func validateTarget(l *check.List, t *scalingv2.MetricTarget) {
	l.In("target")
	defer l.Out()
	types := []scalingv2.MetricTargetType{
		scalingv2.UtilizationMetricType, scalingv2.ValueMetricType, scalingv2.AverageValueMetricType,
	}
	if t.Type == "" {
		l.Required("type", "must specify a metric target type")
	}
	if !slices.Contains(types, t.Type) {
		l.Invalid("type", t.Type, "must be either Utilization, Value, or AverageValue")
	}
	positive := func(child string, q *resource.Quantity) {
		if q != nil && q.Sign() != 1 {
			l.Invalid(child, q, "must be positive")
		}
	}
	positive("value", t.Value)
	positive("averageValue", t.AverageValue)
	if n := t.AverageUtilization; n != nil && *n < 1 {
		l.Invalid("averageUtilization", *n, "must be greater than 0")
	}
}

func validateIdentifier(l *check.List, m *scalingv2.MetricIdentifier) {
	l.Within("metric", func() { segment(l, "name", m.Name, "must specify a metric name") })
}

func validateScaling(l *check.List, child string, r *scalingv2.HPAScalingRules) {
	if r == nil {
		return
	}
	l.In(child)
	defer l.Out()
	if n := r.StabilizationWindowSeconds; n != nil && *n < 0 {
		l.Invalid("stabilizationWindowSeconds", *n, "must be greater than or equal to zero")
	} else if n != nil && *n > maxWindow {
		l.Invalid("stabilizationWindowSeconds", *n, "must be less than or equal to 3600")
	}
	check.Pointer(l, "selectPolicy", r.SelectPolicy, scalingv2.DisabledPolicySelect, scalingv2.MaxChangePolicySelect,
		scalingv2.MinChangePolicySelect)
	if len(r.Policies) == 0 {
		l.Required("policies", "must specify at least one Policy")
	}
	check.Each(l, "policies", r.Policies, func(_ int, p *scalingv2.HPAScalingPolicy) {
		check.Pointer(l, "type", &p.Type, scalingv2.PercentScalingPolicy, scalingv2.PodsScalingPolicy)
		if p.Value <= 0 {
			l.Invalid("value", p.Value, "must be greater than zero")
		}
		if p.PeriodSeconds <= 0 {
			l.Invalid("periodSeconds", p.PeriodSeconds, "must be greater than zero")
		} else if p.PeriodSeconds > maxPeriod {
			l.Invalid("periodSeconds", p.PeriodSeconds, "must be less than or equal to 1800")
		}
	})
	if t := r.Tolerance; t != nil && t.Sign() < 0 {
		l.Invalid("tolerance", t.String(), "must be greater than or equal to 0")
	}
}

func validateScalerStatus(h *scaler) field.ErrorList {
	l := check.At(field.NewPath("status"))
	l.NotNegative("currentReplicas", int64(h.Status.CurrentReplicas))
	l.NotNegative("desiredReplicas", int64(h.Status.DesiredReplicas))
	return l.Errors()
}
