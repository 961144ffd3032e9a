// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
)

// validateDevice checks a device; what it had as old, if there was one, may stay. perDevice devices say themselves
// where they are.
func validateDevice(l *check.List, d, old *resourcev1.Device, perDevice bool) {
	if old == nil {
		old = &resourcev1.Device{}
	}
	l.Label("name", d.Name)
	const most, values = resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice,
		resourcev1.ResourceSliceMaxAttributeValuesPerDevice
	if n := len(d.Attributes) + len(d.Capacity); n > most {
		l.Invalid("", n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", most))
	}
	if n := len(d.Attributes); n > values {
		l.Invalid("", n, fmt.Sprintf("the total number of attribute values must not exceed %d", values))
	}
	l.In("attributes")
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		qualified(l, "", string(name))
		a := d.Attributes[name]
		l.Key(shortened(string(name)))
		validateAttribute(l, &a)
		l.Out()
	}
	l.Out()
	if !equality.Semantic.DeepEqual(d.Capacity, old.Capacity) {
		l.Within("capacity", func() { validateCapacities(l, d.Capacity, kind.Value(d.AllowMultipleAllocations)) })
	}
	if !equality.Semantic.DeepEqual(d.Taints, old.Taints) && !tooMany(l, "taints", len(d.Taints),
		resourcev1.DeviceTaintsMaxLength) {
		check.Each(l, "taints", d.Taints, func(_ int, t *resourcev1.DeviceTaint) { validateTaint(l, t, "") })
	}
	var sets check.Set
	limited(l, "consumesCounters", d.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice,
		func(_ int, c *resourcev1.DeviceCounterConsumption) {
			if !sets.Add(c.CounterSet) {
				l.Declared(field.Duplicate(l.Path(""), *c))
			}
			counters(l, "counterSet", c.CounterSet, c.Counters,
				resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption)
		})
	validateOwnPlace(l, d, perDevice)
	validateBinding(l, d.BindingConditions, d.BindingFailureConditions)
}

// validateOwnPlace: a device says where it is when, and only when, its slice leaves that to the devices.
func validateOwnPlace(l *check.List, d *resourcev1.Device, perDevice bool) {
	if !perDevice {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			l.Invalid("", nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if "+
				"`perDeviceNodeSelection` is set to true in the ResourceSlice spec")
		}
		return
	}
	ways := append(placed(l, d.NodeName, "must not be empty", d.NodeSelector), trueOnly(l, "allNodes", d.AllNodes)...)
	const one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` " +
		"is set to true in the ResourceSlice spec"
	switch len(ways) {
	case 0:
		l.Required("", one)
	case 1:
	default:
		l.Invalid("", fmt.Sprintf("{%s}", strings.Join(ways, ", ")), one)
	}
}

// validateBinding: conditions to wait for and conditions to give up at come together, none of them twice.
func validateBinding(l *check.List, wait, fail []string) {
	check.Each(l, "bindingConditions", limit(l, "bindingConditions", wait, resourcev1.BindingConditionsMaxSize),
		func(_ int, c *string) { l.Qualified("", *c) })
	check.Each(l, "bindingFailureConditions",
		limit(l, "bindingFailureConditions", fail, resourcev1.BindingFailureConditionsMaxSize),
		func(_ int, c *string) { l.Qualified("", *c) })
	var waits, fails check.Set
	check.Each(l, "bindingConditions", wait, func(_ int, c *string) {
		if !waits.Add(*c) {
			l.Duplicate("", *c)
		}
	})
	check.Each(l, "bindingFailureConditions", fail, func(_ int, c *string) {
		if !fails.Add(*c) {
			l.Duplicate("", *c)
		}
		if waits.Has(*c) {
			l.Invalid("", *c, "bindingFailureConditions must not overlap with bindingConditions")
		}
	})
	if len(wait) == 0 && len(fail) > 0 {
		l.Invalid("bindingConditions", wait, "bindingConditions are required to use bindingFailureConditions")
	}
	if len(fail) == 0 && len(wait) > 0 {
		l.Invalid("bindingFailureConditions", fail, "bindingFailureConditions are required to use bindingConditions")
	}
}

// limit is items, or nothing when there are too many.
func limit[T any](l *check.List, child string, items []T, most int) []T {
	if len(items) > most {
		l.Declared(field.TooMany(l.Path(child), len(items), most))
		return nil
	}
	return items
}

// shortened is a map's key as paths show it: the middle of a long one is left out.
func shortened(key string) string {
	const most, dots = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength, "..."
	if len(key) <= most {
		return key
	}
	rest := most - len(dots)
	return key[:(rest+1)/2] + dots + key[len(key)-rest/2:]
}

// qualified wants "[<domain>/]<identifier>".
func qualified(l *check.List, child, name string) {
	parts := strings.Split(name, "/")
	switch len(parts) {
	case 1:
		identifier(l, child, name)
	case 2:
		if parts[0] == "" {
			l.Invalid(child, "", "the domain must not be empty")
		} else {
			podspec.DriverName(l, child, parts[0])
		}
		if parts[1] == "" {
			l.Invalid(child, "", "the name must not be empty")
		} else {
			identifier(l, child, parts[1])
		}
	}
}

// identifier wants a C identifier.
func identifier(l *check.List, child, id string) {
	if len(id) > resourcev1.DeviceMaxIDLength {
		l.TooLong(child, resourcev1.DeviceMaxIDLength)
	}
	for _, m := range content.IsCIdentifier(id) {
		l.Invalid(child, id, m)
	}
}

// semver is a version as semver.org defines it.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

func validateAttribute(l *check.List, a *resourcev1.DeviceAttribute) {
	const most = resourcev1.DeviceAttributeMaxValueLength
	if len(kind.Value(a.StringValue)) > most {
		l.TooLong("string", most)
	}
	if v := a.VersionValue; v != nil {
		if !semver.MatchString(*v) {
			l.Invalid("version", *v, "must be a string compatible with semver.org spec 2.0.0")
		}
		if len(*v) > most {
			l.TooLong("version", most)
		}
	}
	const all = "`int`, `bool`, `string`, `version`, `ints`, `bools`, `strings`, `versions`"
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"int", a.IntValue != nil},
		{"bool", a.BoolValue != nil},
		{"string", a.StringValue != nil},
		{"version", a.VersionValue != nil},
	} {
		if f.set {
			set = append(set, f.name)
		}
	}
	switch {
	case len(set) > 1:
		l.Declared(field.Invalid(l.Path(""), fmt.Sprintf("{%s}", strings.Join(set, ", ")),
			"must specify exactly one of: "+all))
	case len(set) == 0 && !hasList(a):
		l.Declared(field.Invalid(l.Path(""), "", "must specify one of: "+all))
	}
}
