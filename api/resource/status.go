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
func validateClaimStatus(resourceClaim, old *claim) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	status := &resourceClaim.Status
	uids := map[types.UID]bool{}
	limited(errs, "reservedFor", status.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, func(
		_ int, r *resourcev1.ResourceClaimConsumerReference,
	) {
		for _, f := range [][2]string{{"resource", r.Resource}, {"name", r.Name}, {"uid", string(r.UID)}} {
			if f[1] == "" {
				errs.Required(f[0], "")
			}
		}
		if uids[r.UID] {
			errs.Declared(field.Duplicate(errs.Path(""), *r))
		}
		uids[r.UID] = true
	})
	validateDeviceStatuses(errs, status)
	if len(status.ReservedFor) > 0 {
		added := func(r resourcev1.ResourceClaimConsumerReference) bool {
			return !slices.Contains(old.Status.ReservedFor, r)
		}
		switch {
		case status.Allocation == nil:
			errs.Forbidden("reservedFor", "may not be specified when `allocated` is not set")
		case resourceClaim.DeletionTimestamp != nil && slices.ContainsFunc(status.ReservedFor, added):
			errs.Forbidden("reservedFor",
				"new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
		}
	}
	if status.Allocation != nil {
		if old.Status.Allocation != nil {
			errs.Immutable("allocation", status.Allocation, old.Status.Allocation)
		} else {
			errs.Within("allocation", func() {
				validateAllocation(errs, status.Allocation, knownRequests(&resourceClaim.Spec))
			})
		}
	}
	return errs.Errors()
}

// device is how Kubernetes names an allocated device, in errors too.
type device struct{ Driver, Pool, Device, ShareID string }

// validateDeviceStatuses checks what drivers say of the devices that the claim has.
func validateDeviceStatuses(errs *check.List, s *resourcev1.ResourceClaimStatus) {
	allocated := map[device]bool{}
	seen := map[device]bool{}
	if s.Allocation != nil {
		for _, r := range s.Allocation.Devices.Results {
			allocated[device{r.Driver, r.Pool, r.Device, string(kind.Value(r.ShareID))}] = true
		}
	}
	check.Each(errs, "devices", s.Devices, func(_ int, status *resourcev1.AllocatedDeviceStatus) {
		id := device{status.Driver, status.Pool, status.Device, kind.Value(status.ShareID)}
		podspec.DriverName(errs, "driver", status.Driver)
		poolName(errs, "pool", status.Pool)
		errs.Label("device", status.Device)
		if status.ShareID != nil {
			check.Format(errs, "shareID", *status.ShareID, validate.UUID)
		}
		if !allocated[id] {
			errs.Invalid("", id, "must be an allocated device in the claim")
		}
		if seen[id] {
			errs.Declared(field.Duplicate(errs.Path(""), *status))
		}
		seen[id] = true
		tooMany(errs, "conditions", len(status.Conditions), resourcev1.AllocatedDeviceStatusMaxConditions)
		errs.Add(metavalidation.ValidateConditions(status.Conditions, errs.Path("conditions"))...)
		if status.Data != nil && len(status.Data.Raw) > 0 {
			jsonObject(errs, "data", status.Data.Raw, resourcev1.AllocatedDeviceStatusDataMaxLength)
		}
		if status.NetworkData != nil {
			errs.Within("networkData", func() { validateNetwork(errs, status.NetworkData) })
		}
	})
}

func validateNetwork(errs *check.List, data *resourcev1.NetworkDeviceData) {
	for _, f := range []struct {
		child, value string
		most         int
	}{
		{"interfaceName", data.InterfaceName, resourcev1.NetworkDeviceDataInterfaceNameMaxLength},
		{"hardwareAddress", data.HardwareAddress, resourcev1.NetworkDeviceDataHardwareAddressMaxLength},
	} {
		if len(f.value) > f.most {
			errs.Declared(field.TooLong(errs.Path(f.child), "", f.most))
		}
	}
	var seen check.Set
	limited(errs, "ips", data.IPs, resourcev1.NetworkDeviceDataMaxIPs, func(_ int, ip *string) {
		errs.Add(validation.IsValidInterfaceAddress(errs.Path(""), *ip)...)
		if !seen.Add(*ip) {
			errs.Declared(field.Duplicate(errs.Path(""), *ip))
		}
	})
}

// validateAllocation checks what a claim got; known are the names of its requests.
func validateAllocation(errs *check.List, result *resourcev1.AllocationResult, known *check.Set) {
	errs.In("devices")
	limited(errs, "results", result.Devices.Results, resourcev1.AllocationResultsMaxSize, func(
		_ int, r *resourcev1.DeviceRequestAllocationResult,
	) {
		requestName(errs, "request", r.Request, known)
		driverName(errs, "driver", r.Driver)
		if r.Pool == "" {
			errs.Missing("pool")
		} else {
			check.Format(errs, "pool", r.Pool, validate.ResourcePoolName)
		}
		errs.Label("device", r.Device)
		validateBinding(errs, r.BindingConditions, r.BindingFailureConditions)
		check.Each(errs, "tolerations", r.Tolerations, func(_ int, t *resourcev1.DeviceToleration) {
			validateToleration(errs, t)
		})
		if r.ShareID != nil {
			check.Format(errs, "shareID", *r.ShareID, validate.UUID)
		}
	})
	limited(errs, "config", result.Devices.Config, 2*resourcev1.DeviceConfigMaxSize, func(
		_ int, configuration *resourcev1.DeviceAllocationConfiguration,
	) {
		sources := []resourcev1.AllocationConfigSource{
			resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass,
		}
		switch {
		case configuration.Source == "":
			errs.Missing("source")
		case !slices.Contains(sources, configuration.Source):
			errs.Declared(field.NotSupported(errs.Path("source"), configuration.Source, sources))
		}
		requestNames(errs, configuration.Requests, known)
		validateConfiguration(errs, &configuration.DeviceConfiguration, false)
	})
	errs.Out()
	if result.NodeSelector != nil {
		errs.Within("nodeSelector", func() { podspec.NodeSelector(errs, result.NodeSelector) })
	}
}
