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
func validateCapacities(l *check.List, capacities map[resourcev1.QualifiedName]resourcev1.DeviceCapacity, shared bool) {
	for _, name := range slices.Sorted(maps.Keys(capacities)) {
		qualified(l, "", string(name))
		c := capacities[name]
		if c.RequestPolicy == nil {
			continue
		}
		l.Key(shortened(string(name)))
		if shared {
			l.Within("requestPolicy", func() { validatePolicy(l, c.Value, c.RequestPolicy) })
		} else {
			l.Forbidden("requestPolicy", "allowMultipleAllocations must be true")
		}
		l.Out()
	}
}

// validatePolicy: what may be asked for of a capacity is listed or a range, and has a default in it.
func validatePolicy(l *check.List, capacity resource.Quantity, p *resourcev1.CapacityRequestPolicy) {
	listed := len(p.ValidValues) > 0
	switch {
	case listed && p.ValidRange != nil:
		l.Forbidden("",
			`exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)
	case listed && p.Default == nil:
		l.Required("default", "required when validValues is defined")
	case listed:
		validateValues(l, capacity, *p.Default, p.ValidValues)
	case p.ValidRange != nil && p.Default == nil:
		l.Required("default", "required when validRange is defined")
	case p.ValidRange != nil:
		l.Within("validRange", func() { validateRange(l, capacity, *p.Default, p.ValidRange) })
	}
}

// maxOptions is how many values a policy may list.
const maxOptions = 10

func validateValues(l *check.List, capacity, standard resource.Quantity, values []resource.Quantity) {
	const child = "validValues"
	check.Each(l, child, values, func(i int, v *resource.Quantity) {
		if i > 0 && values[i-1].Cmp(*v) > 0 {
			l.Invalid("", v.String(), "values must be sorted in ascending order")
		}
	})
	found := false
	if !tooMany(l, child, len(values), maxOptions) {
		check.Each(l, child, values, func(_ int, v *resource.Quantity) {
			if v.Cmp(capacity) > 0 {
				l.Invalid("", v.String(), "option is larger than capacity value: "+capacity.String())
			}
			found = found || v.Cmp(standard) == 0
		})
		var seen check.Set
		check.Each(l, child, values, func(_ int, v *resource.Quantity) {
			if key := v.AsDec().String(); !seen.Add(key) {
				l.Duplicate("", key)
			}
		})
	}
	if !found {
		l.Invalid(child, standard.String(), "default value is not valid according to the requestPolicy")
	}
}

// bound is a number of a range with the name of its field.
type bound struct {
	name  string
	value *resource.Quantity
}

func validateRange(l *check.List, capacity, standard resource.Quantity, r *resourcev1.CapacityRequestPolicyRange) {
	if r.Min == nil {
		l.Required("min", "required when validRange is defined")
		return
	}
	if r.Min.Cmp(capacity) > 0 {
		l.Invalid("min", r.Min.String(), "min is larger than capacity value: "+capacity.String())
	}
	if standard.Cmp(*r.Min) < 0 {
		l.Invalid("default", standard.String(), "default is less than min: "+r.Min.String())
	}
	if r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			l.Invalid("max", r.Min.String(), "min is larger than max: "+r.Max.String())
		}
		if r.Max.Cmp(capacity) > 0 {
			l.Invalid("max", r.Max.String(), "max is larger than capacity value: "+capacity.String())
		}
		if standard.Cmp(*r.Max) > 0 {
			l.Invalid("default", standard.String(), "default is more than max: "+r.Max.String())
		}
	}
	bounds := slices.DeleteFunc([]bound{{"default", &standard}, {"min", r.Min}, {"max", r.Max}, {"step", r.Step}},
		func(b bound) bool { return b.value == nil })
	milli := slices.ContainsFunc(bounds, func(b bound) bool { return fractional(b.value) })
	if milli && !inMilli(l, bounds) || r.Step == nil {
		return
	}
	if r.Step.Sign() <= 0 {
		l.Invalid("step", r.Step.String(), "must be greater than zero")
		return
	}
	first := r.Min.DeepCopy()
	first.Add(*r.Step)
	if first.Cmp(capacity) > 0 {
		l.Invalid("step", r.Step.String(), fmt.Sprintf("one step %s is larger than capacity value: %s", first.String(),
			capacity.String()))
	}
	if !milli && !inInt64(l, bounds) {
		return
	}
	onStep(l, standard, r, milli)
	if r.Max != nil {
		onStep(l, *r.Max, r, milli)
	}
}

// fractional tells whether q is no whole number.
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
func onStep(l *check.List, v resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, milli bool) {
	at := v.Value()
	from := r.Min.Value()
	step := r.Step.Value()
	if milli {
		at = v.MilliValue()
		from = r.Min.MilliValue()
		step = r.Step.MilliValue()
	}
	if (at-from)%step != 0 {
		l.Invalid("step", v.String(), fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)",
			r.Step.String(), r.Min.String()))
	}
}
