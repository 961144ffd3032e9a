// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/validate"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
)

// validateClaimStatus: an allocation is made and taken back whole.
func validateClaimStatus(c, old *claim) field.ErrorList {
	l := check.At(field.NewPath("status"))
	s := &c.Status
	uids := map[types.UID]bool{}
	limited(l, "reservedFor", s.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, func(
		_ int, r *resourcev1.ResourceClaimConsumerReference,
	) {
		for _, f := range [][2]string{{"resource", r.Resource}, {"name", r.Name}, {"uid", string(r.UID)}} {
			if f[1] == "" {
				l.Required(f[0], "")
			}
		}
		if uids[r.UID] {
			l.Declared(field.Duplicate(l.Path(""), *r))
		}
		uids[r.UID] = true
	})
	validateDeviceStatuses(l, s)
	if len(s.ReservedFor) > 0 {
		added := func(r resourcev1.ResourceClaimConsumerReference) bool {
			return !slices.Contains(old.Status.ReservedFor, r)
		}
		switch {
		case s.Allocation == nil:
			l.Forbidden("reservedFor", "may not be specified when `allocated` is not set")
		case c.DeletionTimestamp != nil && slices.ContainsFunc(s.ReservedFor, added):
			l.Forbidden("reservedFor",
				"new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
		}
	}
	if s.Allocation != nil {
		if old.Status.Allocation != nil {
			l.Immutable("allocation", s.Allocation, old.Status.Allocation)
		} else {
			l.Within("allocation", func() { validateAllocation(l, s.Allocation, knownRequests(&c.Spec)) })
		}
	}
	return l.Errors()
}

// device is how Kubernetes names an allocated device, in errors too.
type device struct{ Driver, Pool, Device, ShareID string }

// validateDeviceStatuses checks what drivers say of the devices that the claim has.
func validateDeviceStatuses(l *check.List, s *resourcev1.ResourceClaimStatus) {
	allocated := map[device]bool{}
	seen := map[device]bool{}
	if s.Allocation != nil {
		for _, r := range s.Allocation.Devices.Results {
			allocated[device{r.Driver, r.Pool, r.Device, string(kind.Value(r.ShareID))}] = true
		}
	}
	check.Each(l, "devices", s.Devices, func(_ int, d *resourcev1.AllocatedDeviceStatus) {
		id := device{d.Driver, d.Pool, d.Device, kind.Value(d.ShareID)}
		podspec.DriverName(l, "driver", d.Driver)
		poolName(l, "pool", d.Pool)
		l.Label("device", d.Device)
		if d.ShareID != nil {
			check.Format(l, "shareID", *d.ShareID, validate.UUID)
		}
		if !allocated[id] {
			l.Invalid("", id, "must be an allocated device in the claim")
		}
		if seen[id] {
			l.Declared(field.Duplicate(l.Path(""), *d))
		}
		seen[id] = true
		tooMany(l, "conditions", len(d.Conditions), resourcev1.AllocatedDeviceStatusMaxConditions)
		l.Add(metavalidation.ValidateConditions(d.Conditions, l.Path("conditions"))...)
		if d.Data != nil && len(d.Data.Raw) > 0 {
			jsonObject(l, "data", d.Data.Raw, resourcev1.AllocatedDeviceStatusDataMaxLength)
		}
		if d.NetworkData != nil {
			l.Within("networkData", func() { validateNetwork(l, d.NetworkData) })
		}
	})
}

func validateNetwork(l *check.List, n *resourcev1.NetworkDeviceData) {
	for _, f := range []struct {
		child, value string
		most         int
	}{
		{"interfaceName", n.InterfaceName, resourcev1.NetworkDeviceDataInterfaceNameMaxLength},
		{"hardwareAddress", n.HardwareAddress, resourcev1.NetworkDeviceDataHardwareAddressMaxLength},
	} {
		if len(f.value) > f.most {
			l.Declared(field.TooLong(l.Path(f.child), "", f.most))
		}
	}
	var seen check.Set
	limited(l, "ips", n.IPs, resourcev1.NetworkDeviceDataMaxIPs, func(_ int, ip *string) {
		l.Add(validation.IsValidInterfaceAddress(l.Path(""), *ip)...)
		if !seen.Add(*ip) {
			l.Declared(field.Duplicate(l.Path(""), *ip))
		}
	})
}

// validateAllocation checks what a claim got; known are the names of its requests.
func validateAllocation(l *check.List, a *resourcev1.AllocationResult, known *check.Set) {
	l.In("devices")
	limited(l, "results", a.Devices.Results, resourcev1.AllocationResultsMaxSize, func(
		_ int, r *resourcev1.DeviceRequestAllocationResult,
	) {
		requestName(l, "request", r.Request, known)
		driverName(l, "driver", r.Driver)
		if r.Pool == "" {
			l.Missing("pool")
		} else {
			check.Format(l, "pool", r.Pool, validate.ResourcePoolName)
		}
		l.Label("device", r.Device)
		validateBinding(l, r.BindingConditions, r.BindingFailureConditions)
		check.Each(l, "tolerations", r.Tolerations, func(_ int, t *resourcev1.DeviceToleration) {
			validateToleration(l, t)
		})
		if r.ShareID != nil {
			check.Format(l, "shareID", *r.ShareID, validate.UUID)
		}
	})
	limited(l, "config", a.Devices.Config, 2*resourcev1.DeviceConfigMaxSize, func(
		_ int, c *resourcev1.DeviceAllocationConfiguration,
	) {
		sources := []resourcev1.AllocationConfigSource{
			resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass,
		}
		switch {
		case c.Source == "":
			l.Missing("source")
		case !slices.Contains(sources, c.Source):
			l.Declared(field.NotSupported(l.Path("source"), c.Source, sources))
		}
		requestNames(l, c.Requests, known)
		validateConfiguration(l, &c.DeviceConfiguration, false)
	})
	l.Out()
	if a.NodeSelector != nil {
		l.Within("nodeSelector", func() { podspec.NodeSelector(l, a.NodeSelector) })
	}
}
