// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

// DeviceClass describes resource.k8s.io/v1 DeviceClass.
func DeviceClass() *kind.Kind {
	type class = resourcev1.DeviceClass
	valid := func(c, old *class) field.ErrorList {
		errs := check.At(field.NewPath("spec"))
		errs.Add(meta.Finalizers(c)...)
		validateSelectors(errs, c.Spec.Selectors, equality.Semantic.DeepEqual(c.Spec.Selectors, old.Spec.Selectors))
		stored := equality.Semantic.DeepEqual(c.Spec.Config, old.Spec.Config)
		limited(errs, "config", c.Spec.Config, resourcev1.DeviceConfigMaxSize, func(
			_ int, cfg *resourcev1.DeviceClassConfiguration,
		) {
			validateConfiguration(errs, &cfg.DeviceConfiguration, stored)
		})
		if n := c.Spec.ExtendedResourceName; n != nil {
			check.Format(errs, "extendedResourceName", *n, validate.ExtendedResourceName)
		}
		return errs.Errors()
	}
	return kind.Spec[*class]{
		Names:          names("DeviceClass", "deviceclasses", "deviceclass", false),
		New:            func() *class { return &class{} },
		NewList:        func() runtime.Object { return &resourcev1.DeviceClassList{} },
		PrepareCreate:  func(c *class) { c.Generation = 1 },
		PrepareUpdate:  func(c, old *class) { c.Generation = bumped(old.Generation, c.Spec, old.Spec) },
		Validate:       func(c *class) field.ErrorList { return valid(c, &class{}) },
		ValidateUpdate: valid,
		Columns:        []metav1.TableColumnDefinition{kind.NameColumn, kind.AgeColumn},
		Row:            func(c *class) []any { return []any{c.Name, kind.Age(c.CreationTimestamp)} },
	}.Erase()
}

type slice = resourcev1.ResourceSlice

// ResourceSlice describes resource.k8s.io/v1 ResourceSlice.
func ResourceSlice() *kind.Kind {
	return kind.Spec[*slice]{
		Names:   names("ResourceSlice", "resourceslices", "resourceslice", false),
		New:     func() *slice { return &slice{} },
		NewList: func() runtime.Object { return &resourcev1.ResourceSliceList{} },
		Default: func(s *slice) {
			now := metav1.Now().Rfc3339Copy()
			for i := range s.Spec.Devices {
				taints := s.Spec.Devices[i].Taints
				for j := range taints {
					kind.Fill(&taints[j].TimeAdded, now)
				}
			}
		},
		PrepareCreate: func(s *slice) {
			s.Generation = 1
			dropFromSlice(&s.Spec, nil)
		},
		PrepareUpdate: func(s, old *slice) {
			s.Generation = bumped(old.Generation, s.Spec, old.Spec) // also by what is dropped, as in Kubernetes
			dropFromSlice(&s.Spec, &old.Spec)
		},
		Validate:       validateSlice,
		ValidateUpdate: validateSliceUpdate,
		Warnings: func(s, _ *slice) []string {
			if s.Spec.Driver == strings.ToLower(s.Spec.Driver) {
				return nil
			}
			return []string{
				fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters",
					s.Spec.Driver),
			}
		},
		Fields: func(s *slice) fields.Set {
			return fields.Set{
				resourcev1.ResourceSliceSelectorNodeName: kind.Value(s.Spec.NodeName),
				resourcev1.ResourceSliceSelectorDriver:   s.Spec.Driver,
				resourcev1.ResourceSliceSelectorPoolName: s.Spec.Pool.Name,
			}
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Node", Type: "string", Description: "The node that has the devices."},
			{Name: "Driver", Type: "string", Description: "The driver that publishes them."},
			{Name: "Pool", Type: "string", Description: "The pool they belong to."},
			kind.AgeColumn,
		},
		Row: func(s *slice) []any {
			return []any{
				s.Name, kind.Value(s.Spec.NodeName), s.Spec.Driver, s.Spec.Pool.Name, kind.Age(s.CreationTimestamp),
			}
		},
	}.Erase()
}

func validateSlice(s *slice) field.ErrorList { return sliceErrors(s, &resourcev1.ResourceSliceSpec{}) }

// sliceErrors is what is wrong with s, which was old before. What a device had before may stay.
func sliceErrors(s *slice, old *resourcev1.ResourceSliceSpec) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	spec := &s.Spec
	errs.Add(meta.Finalizers(s)...)
	podspec.DriverName(errs, "driver", spec.Driver)
	errs.Within("pool", func() {
		poolName(errs, "name", spec.Pool.Name)
		if spec.Pool.ResourceSliceCount <= 0 {
			errs.Invalid("resourceSliceCount", spec.Pool.ResourceSliceCount, "must be greater than zero")
		}
		if spec.Pool.Generation < 0 {
			errs.Invalid("generation", spec.Pool.Generation, "must be greater than or equal to zero")
		}
	})
	if old.Driver != "" {
		errs.Within("pool", func() { errs.Immutable("name", spec.Pool.Name, old.Pool.Name) })
		errs.Immutable("driver", spec.Driver, old.Driver)
		errs.Immutable("nodeName", spec.NodeName, old.NodeName)
	}
	validatePlace(errs, spec)
	if spec.SharedCounters != nil && spec.Devices != nil {
		errs.Invalid("", "", "only one of `sharedCounters` or `devices` is allowed")
	}
	most := resourcev1.ResourceSliceMaxDevices
	if slices.ContainsFunc(spec.Devices, func(d resourcev1.Device) bool {
		return len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 || hasLists(d)
	}) {
		most = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	}
	if tooMany(errs, "devices", len(spec.Devices), most) {
		return errs.Errors()
	}
	perDevice := kind.Value(spec.PerDeviceNodeSelection)
	check.Each(errs, "devices", spec.Devices, func(_ int, d *resourcev1.Device) {
		var before *resourcev1.Device
		if i := slices.IndexFunc(old.Devices, func(o resourcev1.Device) bool { return o.Name == d.Name }); i >= 0 {
			before = &old.Devices[i]
		}
		validateDevice(errs, d, before, perDevice)
	})
	var seen check.Set
	check.Each(errs, "devices", spec.Devices, func(_ int, d *resourcev1.Device) {
		if !seen.Add(d.Name) {
			errs.Duplicate("", d.Name)
		}
	})
	var sets check.Set
	limited(errs, "sharedCounters", spec.SharedCounters, resourcev1.ResourceSliceMaxCounterSets, func(
		_ int, c *resourcev1.CounterSet,
	) {
		if !sets.Add(c.Name) {
			errs.Declared(field.Duplicate(errs.Path(""), *c))
		}
		counters(errs, "name", c.Name, c.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet)
	})
	return errs.Errors()
}

// counters checks the counters of a set that child names.
func counters(l *check.List, child, name string, counters map[string]resourcev1.Counter, most int) {
	if name == "" {
		l.Missing(child)
	} else {
		check.Format(l, child, name, validate.ShortName)
	}
	if len(counters) == 0 {
		l.Missing("counters")
	} else if !tooMany(l, "counters", len(counters), most) {
		for _, key := range slices.Sorted(maps.Keys(counters)) {
			check.Format(l, "counters", key, validate.ShortName)
		}
	}
}

// validatePlace wants one way of saying which nodes can reach the devices.
func validatePlace(errs *check.List, spec *resourcev1.ResourceSliceSpec) {
	ways := placed(errs, spec.NodeName, "must be either unset or set to a non-empty string", spec.NodeSelector)
	if spec.NodeSelector != nil {
		if n := len(spec.NodeSelector.NodeSelectorTerms); n != 1 {
			errs.Within("nodeSelector", func() {
				errs.Invalid("nodeSelectorTerms", spec.NodeSelector.NodeSelectorTerms,
					"must have exactly one node selector term")
			})
		}
	}
	ways = append(ways, trueOnly(errs, "allNodes", spec.AllNodes)...)
	ways = append(ways, trueOnly(errs, "perDeviceNodeSelection", spec.PerDeviceNodeSelection)...)
	const one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	switch len(ways) {
	case 0:
		errs.Required("", one)
	case 1:
	default:
		errs.Invalid("", fmt.Sprintf("{%s}", strings.Join(ways, ", ")), one+", but multiple fields are set")
	}
}

// placed checks a node's name and a selector of nodes, and lists which of them are set.
func placed(errs *check.List, node *string, empty string, selector *corev1.NodeSelector) (ways []string) {
	switch {
	case node == nil:
	case *node == "":
		errs.Invalid("nodeName", *node, empty)
	default:
		ways = append(ways, "`nodeName`")
		errs.Subdomain("nodeName", *node)
	}
	if selector != nil {
		ways = append(ways, "`nodeSelector`")
		errs.Within("nodeSelector", func() { podspec.NodeSelector(errs, selector) })
	}
	return ways
}

// trueOnly checks a switch that is never turned off, and lists it when it is on.
func trueOnly(l *check.List, child string, v *bool) []string {
	switch {
	case v == nil:
		return nil
	case *v:
		return []string{"`" + child + "`"}
	}
	l.Invalid(child, *v, "must be either unset or set to true")
	return nil
}

// validateTaint checks a taint; an effect that it had before may stay.
func validateTaint(l *check.List, t *resourcev1.DeviceTaint, old resourcev1.DeviceTaintEffect) {
	l.Qualified("key", t.Key)
	l.LabelValue("value", t.Value)
	switch {
	case t.Effect == old && old != "":
	case t.Effect == "":
		l.Missing("effect")
	case !slices.Contains(taintEffects, t.Effect):
		l.Declared(field.NotSupported(l.Path("effect"), t.Effect, taintEffects))
	}
}

func validateSliceUpdate(s, old *slice) field.ErrorList { return sliceErrors(s, &old.Spec) }

// DeviceTaintRule describes resource.k8s.io/v1 DeviceTaintRule.
func DeviceTaintRule() *kind.Kind {
	type rule = resourcev1.DeviceTaintRule
	return kind.Spec[*rule]{
		Names:   names("DeviceTaintRule", "devicetaintrules", "devicetaintrule", false),
		New:     func() *rule { return &rule{} },
		NewList: func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },
		Default: func(r *rule) { kind.Fill(&r.Spec.Taint.TimeAdded, metav1.Now().Rfc3339Copy()) },
		PrepareCreate: func(r *rule) {
			r.Generation = 1
			r.Status = resourcev1.DeviceTaintRuleStatus{}
		},
		PrepareUpdate: func(r, old *rule) {
			r.Status = old.Status
			if now, was := &r.Spec.Taint, &old.Spec.Taint; now.Effect != was.Effect &&
				now.TimeAdded.Equal(was.TimeAdded) {
				now.TimeAdded = new(metav1.Now().Rfc3339Copy()) // tolerations count from the effect
			}
			r.Generation = bumped(old.Generation, r.Spec, old.Spec)
		},
		Validate:              func(r *rule) field.ErrorList { return validateTaintRule(r, &rule{}) },
		ValidateUpdate:        validateTaintRule,
		NoUnconditionalUpdate: true,

		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Key", Type: "string", Description: "The taint's key."},
			{
				Name:        "Value",
				Type:        "string",
				Description: "The taint's value.",
			},
			{Name: "Effect", Type: "string", Description: "What the taint does."},
			{
				Name:        "TimeAdded",
				Type:        "string",
				Description: "For how long it has done so.",
			},
			kind.AgeColumn,
		},
		Row: func(r *rule) []any {
			t := &r.Spec.Taint
			return []any{r.Name, t.Key, t.Value, string(t.Effect), kind.Age(kind.Value(t.TimeAdded)), kind.Age(
				r.CreationTimestamp)}
		},
		Status: &kind.Sub[*rule]{
			PrepareUpdate: func(r, old *rule) {
				r.Spec = old.Spec
				meta.KeepForStatus(r, old)
			},
			ValidateUpdate: func(r, _ *rule) field.ErrorList {
				l := check.At(field.NewPath("status"))
				l.Add(metavalidation.ValidateConditions(r.Status.Conditions, l.Path("conditions"))...)
				tooMany(l, "conditions", len(r.Status.Conditions), resourcev1.DeviceTaintRuleStatusMaxConditions)
				return l.Errors()
			},
		},
	}.Erase()
}

func validateTaintRule(rule, old *resourcev1.DeviceTaintRule) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	errs.Add(meta.Finalizers(rule)...)
	if s := rule.Spec.DeviceSelector; s != nil {
		errs.In("deviceSelector")
		if s.Driver != nil {
			podspec.DriverName(errs, "driver", *s.Driver)
		}
		if s.Pool != nil {
			poolName(errs, "pool", *s.Pool)
		}
		if s.Device != nil {
			errs.Label("device", *s.Device)
		}
		errs.Out()
	}
	errs.Within("taint", func() { validateTaint(errs, &rule.Spec.Taint, old.Spec.Taint.Effect) })
	return errs.Errors()
}

// RuleSelects reports whether a rule taints a device. One without a selector taints none.
func RuleSelects(r *resourcev1.DeviceTaintRule, driver, pool, device string) bool {
	s := r.Spec.DeviceSelector
	is := func(want *string, got string) bool { return want == nil || *want == got }
	return s != nil && is(s.Driver, driver) && is(s.Pool, pool) && is(s.Device, device)
}
