// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
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
	valid := func(c *class) field.ErrorList {
		l := check.At(field.NewPath("spec"))
		l.Add(meta.Finalizers(c)...)
		validateSelectors(l, c.Spec.Selectors)
		limited(l, "config", c.Spec.Config, resourcev1.DeviceConfigMaxSize, func(_ int, cfg *resourcev1.DeviceClassConfiguration) {
			validateConfiguration(l, &cfg.DeviceConfiguration)
		})
		if n := c.Spec.ExtendedResourceName; n != nil {
			check.Format(l, "extendedResourceName", *n, validate.ExtendedResourceName)
		}
		return l.Errors()
	}
	return kind.Spec[*class]{
		Names:          names("DeviceClass", "deviceclasses", "deviceclass", false),
		New:            func() *class { return &class{} },
		NewList:        func() runtime.Object { return &resourcev1.DeviceClassList{} },
		PrepareCreate:  func(c *class) { c.Generation = 1 },
		PrepareUpdate:  func(c, old *class) { c.Generation = bumped(old.Generation, c.Spec, old.Spec) },
		Validate:       valid,
		ValidateUpdate: func(c, _ *class) field.ErrorList { return valid(c) },
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
			dropFromSlice(&s.Spec, &old.Spec)
			s.Generation = bumped(old.Generation, s.Spec, old.Spec)
		},
		Validate:       validateSlice,
		ValidateUpdate: validateSliceUpdate,
		Fields: func(s *slice) fields.Set {
			return fields.Set{
				resourcev1.ResourceSliceSelectorNodeName: kind.Value(s.Spec.NodeName), resourcev1.ResourceSliceSelectorDriver: s.Spec.Driver,
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
			return []any{s.Name, kind.Value(s.Spec.NodeName), s.Spec.Driver, s.Spec.Pool.Name, kind.Age(s.CreationTimestamp)}
		},
	}.Erase()
}

func validateSlice(s *slice) field.ErrorList {
	l, spec := check.At(field.NewPath("spec")), &s.Spec
	l.Add(meta.Finalizers(s)...)
	podspec.DriverName(l, "driver", spec.Driver)
	l.Within("pool", func() {
		poolName(l, "name", spec.Pool.Name)
		if spec.Pool.ResourceSliceCount <= 0 {
			l.Invalid("resourceSliceCount", spec.Pool.ResourceSliceCount, "must be greater than zero")
		}
		l.NotNegative("generation", spec.Pool.Generation)
	})
	validatePlace(l, spec)
	tooMany(l, "devices", len(spec.Devices), resourcev1.ResourceSliceMaxDevices)
	var seen check.Set
	check.Each(l, "devices", spec.Devices, func(_ int, d *resourcev1.Device) {
		if d.Name != "" && !seen.Add(d.Name) {
			l.Duplicate("name", d.Name)
		}
		validateDevice(l, d)
	})
	tooMany(l, "sharedCounters", len(spec.SharedCounters), resourcev1.ResourceSliceMaxCounterSets)
	return l.Errors()
}

// validatePlace wants one way of saying which nodes can reach the devices.
func validatePlace(l *check.List, s *resourcev1.ResourceSliceSpec) {
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"nodeName", s.NodeName != nil}, {"nodeSelector", s.NodeSelector != nil}, {"allNodes", s.AllNodes != nil},
		{"perDeviceNodeSelection", s.PerDeviceNodeSelection != nil},
	} {
		if f.set {
			set = append(set, "`"+f.name+"`")
		}
	}
	const one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	switch len(set) {
	case 0:
		l.Required("", one)
	case 1:
	default:
		l.Invalid("", fmt.Sprintf("{%s}", strings.Join(set, ", ")), one+", but multiple fields are set")
	}
	if s.NodeName != nil {
		if *s.NodeName == "" {
			l.Invalid("nodeName", *s.NodeName, "must be either unset or set to a non-empty string")
		} else {
			l.Subdomain("nodeName", *s.NodeName)
		}
	}
	if s.NodeSelector != nil {
		l.Within("nodeSelector", func() { podspec.NodeSelector(l, s.NodeSelector) })
		if n := len(s.NodeSelector.NodeSelectorTerms); n != 1 {
			l.Within("nodeSelector", func() {
				l.Invalid("nodeSelectorTerms", s.NodeSelector.NodeSelectorTerms, "must have exactly one node selector term")
			})
		}
	}
	for _, f := range []struct {
		child string
		v     *bool
	}{{"allNodes", s.AllNodes}, {"perDeviceNodeSelection", s.PerDeviceNodeSelection}} {
		if f.v != nil && !*f.v {
			l.Invalid(f.child, *f.v, "must be either unset or set to true")
		}
	}
}

func validateDevice(l *check.List, d *resourcev1.Device) {
	l.Label("name", d.Name)
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		l.Invalid("", n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice))
	}
	l.In("attributes")
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		l.Key(string(name))
		qualified(l, string(name))
		a := d.Attributes[name]
		validateAttribute(l, &a)
		l.Out()
	}
	l.Out()
	l.In("capacity")
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		l.Key(string(name))
		qualified(l, string(name))
		l.Out()
	}
	l.Out()
	tooMany(l, "taints", len(d.Taints), resourcev1.DeviceTaintsMaxLength)
	check.Each(l, "taints", d.Taints, func(_ int, t *resourcev1.DeviceTaint) { validateTaint(l, t) })
}

// qualified wants "[<domain>/]<identifier>".
func qualified(l *check.List, name string) {
	if name == "" {
		l.Required("", "")
		return
	}
	if domain, id, ok := strings.Cut(name, "/"); ok {
		qualifiedParts(l, "", domain, id)
	} else {
		identifier(l, "", name)
	}
}

func validateAttribute(l *check.List, a *resourcev1.DeviceAttribute) {
	n := 0
	for _, set := range []bool{
		a.IntValue != nil, a.BoolValue != nil, a.StringValue != nil, a.VersionValue != nil,
		a.IntValues != nil, a.BoolValues != nil, a.StringValues != nil, a.VersionValues != nil,
	} {
		if set {
			n++
		}
	}
	const most = resourcev1.DeviceAttributeMaxValueLength
	switch {
	case n == 0:
		l.Required("", "exactly one value must be specified")
	case n > 1:
		l.Invalid("", *a, "exactly one value must be specified")
	case len(kind.Value(a.StringValue)) > most:
		l.TooLong("string", most)
	case len(kind.Value(a.VersionValue)) > most:
		l.TooLong("version", most)
	}
}

func validateTaint(l *check.List, t *resourcev1.DeviceTaint) {
	l.Qualified("key", t.Key)
	l.LabelValue("value", t.Value)
	check.OneOf(l, "effect", t.Effect, taintEffects...)
}

func validateSliceUpdate(s, old *slice) field.ErrorList {
	l := check.At(field.NewPath("spec"))
	l.Add(validateSlice(s)...)
	l.Immutable("driver", s.Spec.Driver, old.Spec.Driver)
	l.Within("pool", func() { l.Immutable("name", s.Spec.Pool.Name, old.Spec.Pool.Name) })
	l.Immutable("nodeName", s.Spec.NodeName, old.Spec.NodeName)
	return l.Errors()
}

// DeviceTaintRule describes resource.k8s.io/v1 DeviceTaintRule.
func DeviceTaintRule() *kind.Kind {
	type rule = resourcev1.DeviceTaintRule
	valid := func(r *rule) field.ErrorList {
		l := check.At(field.NewPath("spec"))
		l.Add(meta.Finalizers(r)...)
		if s := r.Spec.DeviceSelector; s != nil {
			l.In("deviceSelector")
			if s.Driver != nil {
				podspec.DriverName(l, "driver", *s.Driver)
			}
			if s.Pool != nil {
				poolName(l, "pool", *s.Pool)
			}
			if s.Device != nil {
				l.Label("device", *s.Device)
			}
			l.Out()
		}
		l.Within("taint", func() { validateTaint(l, &r.Spec.Taint) })
		return l.Errors()
	}
	return kind.Spec[*rule]{
		Names:   names("DeviceTaintRule", "devicetaintrules", "devicetaintrule", false),
		New:     func() *rule { return &rule{} },
		NewList: func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },
		Default: func(r *rule) { kind.Fill(&r.Spec.Taint.TimeAdded, metav1.Now().Rfc3339Copy()) },
		PrepareCreate: func(r *rule) {
			r.Generation, r.Status = 1, resourcev1.DeviceTaintRuleStatus{}
		},
		PrepareUpdate: func(r, old *rule) {
			r.Status = old.Status
			if now, was := &r.Spec.Taint, &old.Spec.Taint; now.Effect != was.Effect && now.TimeAdded.Equal(was.TimeAdded) {
				now.TimeAdded = new(metav1.Now().Rfc3339Copy()) // tolerations count from the effect
			}
			r.Generation = bumped(old.Generation, r.Spec, old.Spec)
		},
		Validate: valid,
		ValidateUpdate: func(r, old *rule) field.ErrorList {
			l := check.At(field.NewPath("spec"))
			l.Add(valid(r)...)
			l.Immutable("deviceSelector", r.Spec.DeviceSelector, old.Spec.DeviceSelector)
			return l.Errors()
		},
		NoUnconditionalUpdate: true,

		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {Name: "Key", Type: "string", Description: "The taint's key."}, {Name: "Value", Type: "string", Description: "The taint's value."},
			{Name: "Effect", Type: "string", Description: "What the taint does."}, {Name: "TimeAdded", Type: "string", Description: "For how long it has done so."},
			kind.AgeColumn,
		},
		Row: func(r *rule) []any {
			t := &r.Spec.Taint
			return []any{r.Name, t.Key, t.Value, string(t.Effect), kind.Age(kind.Value(t.TimeAdded)), kind.Age(r.CreationTimestamp)}
		},
		Status: &kind.Sub[*rule]{
			PrepareUpdate: func(r, old *rule) {
				r.Spec = old.Spec
				meta.KeepForStatus(r, old)
			},
			ValidateUpdate: func(r, _ *rule) field.ErrorList {
				l := check.At(field.NewPath("status"))
				tooMany(l, "conditions", len(r.Status.Conditions), resourcev1.DeviceTaintRuleStatusMaxConditions)
				l.Add(metavalidation.ValidateConditions(r.Status.Conditions, l.Path("conditions"))...)
				return l.Errors()
			},
		},
	}.Erase()
}
