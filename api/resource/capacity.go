// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"maps"
	"math"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"keelson/api/internal/check"
)

// validateCapacities checks what a device can give: only one that many share (shared) has policies of how much
// (KEP-5075).
func validateCapacities(
	errs *check.List, capacities map[resourcev1.QualifiedName]resourcev1.DeviceCapacity, shared bool,
) {
	for _, name := range slices.Sorted(maps.Keys(capacities)) {
		qualified(errs, "", string(name))
		c := capacities[name]
		if c.RequestPolicy == nil {
			continue
		}
		errs.Key(shortened(string(name)))
		if shared {
			errs.Within("requestPolicy", func() { validatePolicy(errs, c.Value, c.RequestPolicy) })
		} else {
			errs.Forbidden("requestPolicy", "allowMultipleAllocations must be true")
		}
		errs.Out()
	}
}

// validatePolicy: what may be asked for of a capacity is listed or a range, and has a default in it.
func validatePolicy(errs *check.List, capacity resource.Quantity, policy *resourcev1.CapacityRequestPolicy) {
	listed := len(policy.ValidValues) > 0
	switch {
	case listed && policy.ValidRange != nil:
		errs.Forbidden("",
			`exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)
	case listed && policy.Default == nil:
		errs.Required("default", "required when validValues is defined")
	case listed:
		validateValues(errs, capacity, *policy.Default, policy.ValidValues)
	case policy.ValidRange != nil && policy.Default == nil:
		errs.Required("default", "required when validRange is defined")
	case policy.ValidRange != nil:
		errs.Within("validRange", func() { validateRange(errs, capacity, *policy.Default, policy.ValidRange) })
	}
}

// maxOptions is how many values a policy may list.
const maxOptions = 10

func validateValues(errs *check.List, capacity, standard resource.Quantity, values []resource.Quantity) {
	const child = "validValues"
	check.Each(errs, child, values, func(i int, v *resource.Quantity) {
		if i > 0 && values[i-1].Cmp(*v) > 0 {
			errs.Invalid("", v.String(), "values must be sorted in ascending order")
		}
	})
	found := false
	if !tooMany(errs, child, len(values), maxOptions) {
		check.Each(errs, child, values, func(_ int, v *resource.Quantity) {
			if v.Cmp(capacity) > 0 {
				errs.Invalid("", v.String(), "option is larger than capacity value: "+capacity.String())
			}
			found = found || v.Cmp(standard) == 0
		})
		var seen check.Set
		check.Each(errs, child, values, func(_ int, v *resource.Quantity) {
			if key := v.AsDec().String(); !seen.Add(key) {
				errs.Duplicate("", key)
			}
		})
	}
	if !found {
		errs.Invalid(child, standard.String(), "default value is not valid according to the requestPolicy")
	}
}

// bound is a number of a range with the name of its field.
type bound struct {
	name  string
	value *resource.Quantity
}

func validateRange(errs *check.List, capacity, standard resource.Quantity, rng *resourcev1.CapacityRequestPolicyRange) {
	if rng.Min == nil {
		errs.Required("min", "required when validRange is defined")
		return
	}
	if rng.Min.Cmp(capacity) > 0 {
		errs.Invalid("min", rng.Min.String(), "min is larger than capacity value: "+capacity.String())
	}
	if standard.Cmp(*rng.Min) < 0 {
		errs.Invalid("default", standard.String(), "default is less than min: "+rng.Min.String())
	}
	if rng.Max != nil {
		if rng.Min.Cmp(*rng.Max) > 0 {
			errs.Invalid("max", rng.Min.String(), "min is larger than max: "+rng.Max.String())
		}
		if rng.Max.Cmp(capacity) > 0 {
			errs.Invalid("max", rng.Max.String(), "max is larger than capacity value: "+capacity.String())
		}
		if standard.Cmp(*rng.Max) > 0 {
			errs.Invalid("default", standard.String(), "default is more than max: "+rng.Max.String())
		}
	}
	bounds := slices.DeleteFunc([]bound{{"default", &standard}, {"min", rng.Min}, {"max", rng.Max}, {"step", rng.Step}},
		func(b bound) bool { return b.value == nil })
	milli := slices.ContainsFunc(bounds, func(b bound) bool { return fractional(b.value) })
	if milli && !inMilli(errs, bounds) || rng.Step == nil {
		return
	}
	if rng.Step.Sign() <= 0 {
		errs.Invalid("step", rng.Step.String(), "must be greater than zero")
		return
	}
	first := rng.Min.DeepCopy()
	first.Add(*rng.Step)
	if first.Cmp(capacity) > 0 {
		errs.Invalid("step", rng.Step.String(), fmt.Sprintf("one step %s is larger than capacity value: %s",
			first.String(),
			capacity.String()))
	}
	if !milli && !inInt64(errs, bounds) {
		return
	}
	onStep(errs, standard, rng, milli)
	if rng.Max != nil {
		onStep(errs, *rng.Max, rng, milli)
	}
}

// fractional reports whether q is no whole number.
func fractional(q *resource.Quantity) bool {
	whole := q.DeepCopy()
	whole.RoundUp(0)
	return whole.Cmp(*q) != 0
}

// inMilli wants thousandths at the finest.
func inMilli(l *check.List, bounds []bound) bool {
	ok := true
	for _, b := range bounds {
		if b.value.Cmp(*resource.NewMilliQuantity(b.value.MilliValue(), b.value.Format)) != 0 {
			l.Invalid(b.name, b.value.String(), "value cannot be represented as a milli value")
			ok = false
		}
	}
	return ok
}

// inInt64 wants numbers that can be counted with.
func inInt64(l *check.List, bounds []bound) bool {
	ok := true
	for _, b := range bounds {
		switch {
		case b.value.Sign() < 0:
			l.Invalid(b.name, b.value.String(), apivalidation.IsNegativeErrorMsg)
			ok = false
		case b.value.CmpInt64(math.MaxInt64) > 0:
			l.Invalid(b.name, b.value.String(), "must not be larger than 9223372036854775807")
			ok = false
		}
	}
	return ok
}

// onStep wants a value that is some steps above the range's beginning.
func onStep(l *check.List, v resource.Quantity, rng *resourcev1.CapacityRequestPolicyRange, milli bool) {
	at := v.Value()
	from := rng.Min.Value()
	step := rng.Step.Value()
	if milli {
		at = v.MilliValue()
		from = rng.Min.MilliValue()
		step = rng.Step.MilliValue()
	}
	if (at-from)%step != 0 {
		l.Invalid("step", v.String(), fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)",
			rng.Step.String(), rng.Min.String()))
	}
}
