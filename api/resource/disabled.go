// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
)

// Fields of gates that are off by default in v1.37 are dropped, unless the object had a field of the same gate before.
// old is nil on create.

// dropFromRequests: DRADerivedAttributes.
func dropFromRequests(requests, old []resourcev1.DeviceRequest) {
	used := slices.ContainsFunc(old, func(r resourcev1.DeviceRequest) bool {
		return r.Exactly != nil && r.Exactly.DerivedAttributes != nil ||
			slices.ContainsFunc(r.FirstAvailable, func(s resourcev1.DeviceSubRequest) bool {
				return s.DerivedAttributes != nil
			})
	})
	if used {
		return
	}
	for i := range requests {
		if e := requests[i].Exactly; e != nil {
			e.DerivedAttributes = nil
		}
		for j := range requests[i].FirstAvailable {
			requests[i].FirstAvailable[j].DerivedAttributes = nil
		}
	}
}

// dropFromResults: DRAOptionalNodeOperations.
func dropFromResults(now, old *resourcev1.AllocationResult) {
	skips := func(r resourcev1.DeviceRequestAllocationResult) bool { return r.SkipNodeOperations != nil }
	if now == nil || old != nil && slices.ContainsFunc(old.Devices.Results, skips) {
		return
	}
	for i := range now.Devices.Results {
		now.Devices.Results[i].SkipNodeOperations = nil
	}
}

// dropFromSlice: DRAPartitionableDevicesType, DRAOptionalNodeOperations, DRANodeAllocatableResources,
// DRADeviceCompatibilityGroups and DRAListTypeAttributes.
func dropFromSlice(now, old *resourcev1.ResourceSliceSpec) {
	if old == nil {
		old = &resourcev1.ResourceSliceSpec{}
	}
	if old.PartitionTypeAttribute == nil {
		now.PartitionTypeAttribute = nil
	}
	if old.SkipNodeOperations == nil {
		now.SkipNodeOperations = nil
	}
	had := func(has func(resourcev1.Device) bool) bool { return slices.ContainsFunc(old.Devices, has) }
	allocatable := had(func(d resourcev1.Device) bool { return d.NodeAllocatableResources != nil })
	groups := had(func(d resourcev1.Device) bool {
		return slices.ContainsFunc(d.ConsumesCounters, func(c resourcev1.DeviceCounterConsumption) bool {
			return c.CompatibilityGroups != nil
		})
	})
	lists := had(hasLists)
	for i := range now.Devices {
		d := &now.Devices[i]
		if !allocatable {
			d.NodeAllocatableResources = nil
		}
		for j := range d.ConsumesCounters {
			if !groups {
				d.ConsumesCounters[j].CompatibilityGroups = nil
			}
		}
		if !lists {
			dropLists(d)
		}
	}
}

func hasLists(d resourcev1.Device) bool {
	for _, a := range d.Attributes {
		if hasList(&a) {
			return true
		}
	}
	return false
}

// hasList reports whether an attribute is a list of values.
func hasList(a *resourcev1.DeviceAttribute) bool {
	return a.IntValues != nil || a.BoolValues != nil || a.StringValues != nil || a.VersionValues != nil
}

func dropLists(d *resourcev1.Device) {
	for name, a := range d.Attributes {
		a.IntValues = nil
		a.BoolValues = nil
		a.StringValues = nil
		a.VersionValues = nil
		d.Attributes[name] = a
	}
}
