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
func validateDevice(errs *check.List, device, old *resourcev1.Device, perDevice bool) {
	if old == nil {
		old = &resourcev1.Device{}
	}
	errs.Label("name", device.Name)
	const most, values = resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice,
		resourcev1.ResourceSliceMaxAttributeValuesPerDevice
	if n := len(device.Attributes) + len(device.Capacity); n > most {
		errs.Invalid("", n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", most))
	}
	if n := len(device.Attributes); n > values {
		errs.Invalid("", n, fmt.Sprintf("the total number of attribute values must not exceed %d", values))
	}
	errs.In("attributes")
	for _, name := range slices.Sorted(maps.Keys(device.Attributes)) {
		qualified(errs, "", string(name))
		a := device.Attributes[name]
		errs.Key(shortened(string(name)))
		validateAttribute(errs, &a)
		errs.Out()
	}
	errs.Out()
	if !equality.Semantic.DeepEqual(device.Capacity, old.Capacity) {
		errs.Within("capacity", func() {
			validateCapacities(errs, device.Capacity, kind.Value(device.AllowMultipleAllocations))
		})
	}
	if !equality.Semantic.DeepEqual(device.Taints, old.Taints) && !tooMany(errs, "taints", len(device.Taints),
		resourcev1.DeviceTaintsMaxLength) {
		check.Each(errs, "taints", device.Taints, func(_ int, t *resourcev1.DeviceTaint) { validateTaint(errs, t, "") })
	}
	var sets check.Set
	limited(errs, "consumesCounters", device.ConsumesCounters,
		resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice,
		func(_ int, c *resourcev1.DeviceCounterConsumption) {
			if !sets.Add(c.CounterSet) {
				errs.Declared(field.Duplicate(errs.Path(""), *c))
			}
			counters(errs, "counterSet", c.CounterSet, c.Counters,
				resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption)
		})
	validateOwnPlace(errs, device, perDevice)
	validateBinding(errs, device.BindingConditions, device.BindingFailureConditions)
}

// validateOwnPlace: a device says where it is when, and only when, its slice leaves that to the devices.
func validateOwnPlace(errs *check.List, d *resourcev1.Device, perDevice bool) {
	if !perDevice {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			errs.Invalid("", nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if "+
				"`perDeviceNodeSelection` is set to true in the ResourceSlice spec")
		}
		return
	}
	ways := append(placed(errs, d.NodeName, "must not be empty", d.NodeSelector),
		trueOnly(errs, "allNodes", d.AllNodes)...)
	const one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` " +
		"is set to true in the ResourceSlice spec"
	switch len(ways) {
	case 0:
		errs.Required("", one)
	case 1:
	default:
		errs.Invalid("", fmt.Sprintf("{%s}", strings.Join(ways, ", ")), one)
	}
}

// validateBinding: conditions to wait for and conditions to give up at come together, none of them twice.
func validateBinding(errs *check.List, wait, fail []string) {
	check.Each(errs, "bindingConditions", limit(errs, "bindingConditions", wait, resourcev1.BindingConditionsMaxSize),
		func(_ int, c *string) { errs.Qualified("", *c) })
	check.Each(errs, "bindingFailureConditions",
		limit(errs, "bindingFailureConditions", fail, resourcev1.BindingFailureConditionsMaxSize),
		func(_ int, c *string) { errs.Qualified("", *c) })
	var waits, fails check.Set
	check.Each(errs, "bindingConditions", wait, func(_ int, c *string) {
		if !waits.Add(*c) {
			errs.Duplicate("", *c)
		}
	})
	check.Each(errs, "bindingFailureConditions", fail, func(_ int, c *string) {
		if !fails.Add(*c) {
			errs.Duplicate("", *c)
		}
		if waits.Has(*c) {
			errs.Invalid("", *c, "bindingFailureConditions must not overlap with bindingConditions")
		}
	})
	if len(wait) == 0 && len(fail) > 0 {
		errs.Invalid("bindingConditions", wait, "bindingConditions are required to use bindingFailureConditions")
	}
	if len(fail) == 0 && len(wait) > 0 {
		errs.Invalid("bindingFailureConditions", fail, "bindingFailureConditions are required to use bindingConditions")
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
func qualified(errs *check.List, child, name string) {
	parts := strings.Split(name, "/")
	switch len(parts) {
	case 1:
		identifier(errs, child, name)
	case 2:
		if parts[0] == "" {
			errs.Invalid(child, "", "the domain must not be empty")
		} else {
			podspec.DriverName(errs, child, parts[0])
		}
		if parts[1] == "" {
			errs.Invalid(child, "", "the name must not be empty")
		} else {
			identifier(errs, child, parts[1])
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

func validateAttribute(errs *check.List, attribute *resourcev1.DeviceAttribute) {
	const most = resourcev1.DeviceAttributeMaxValueLength
	if len(kind.Value(attribute.StringValue)) > most {
		errs.TooLong("string", most)
	}
	if v := attribute.VersionValue; v != nil {
		if !semver.MatchString(*v) {
			errs.Invalid("version", *v, "must be a string compatible with semver.org spec 2.0.0")
		}
		if len(*v) > most {
			errs.TooLong("version", most)
		}
	}
	const all = "`int`, `bool`, `string`, `version`, `ints`, `bools`, `strings`, `versions`"
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"int", attribute.IntValue != nil},
		{"bool", attribute.BoolValue != nil},
		{"string", attribute.StringValue != nil},
		{"version", attribute.VersionValue != nil},
	} {
		if f.set {
			set = append(set, f.name)
		}
	}
	switch {
	case len(set) > 1:
		errs.Declared(field.Invalid(errs.Path(""), fmt.Sprintf("{%s}", strings.Join(set, ", ")),
			"must specify exactly one of: "+all))
	case len(set) == 0 && !hasList(attribute):
		errs.Declared(field.Invalid(errs.Path(""), "", "must specify one of: "+all))
	}
}
