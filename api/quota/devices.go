// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

// DeviceClaims is the name that counts claims of devices.
const DeviceClaims corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// ofDeviceClass comes after a device class's name where its devices are limited.
const ofDeviceClass = ".deviceclass.resource.k8s.io/devices"

// A claim's spec never changes: it is charged once.
var deviceClaimMeter = &Meter{Tracks: deviceClaimTracks, Usage: deviceClaimUsage}

func deviceClaimTracks(n corev1.ResourceName) bool {
	return n == DeviceClaims || strings.HasSuffix(string(n), ofDeviceClass)
}

func deviceClaimUsage(obj runtime.Object, _ time.Time) corev1.ResourceList {
	c, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return nil
	}
	devices := map[string]int64{}
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		if e := r.Exactly; e != nil {
			devices[e.DeviceClassName] += deviceCount(e.AllocationMode, e.Count)
		}
		// One of the alternatives is taken: each class counts with its most demanding one.
		most := map[string]int64{}
		for _, s := range r.FirstAvailable {
			most[s.DeviceClassName] = max(most[s.DeviceClassName], deviceCount(s.AllocationMode, s.Count))
		}
		for class, n := range most {
			devices[class] += n
		}
	}
	out := corev1.ResourceList{DeviceClaims: one()}
	for class, n := range devices {
		if class != "" && n > 0 {
			out[corev1.ResourceName(class+ofDeviceClass)] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return out
}

// deviceCount is how many devices a request can get: of "all", as many as a claim can hold.
func deviceCount(mode resourcev1.DeviceAllocationMode, count int64) int64 {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount, "":
		return max(count, 0)
	case resourcev1.DeviceAllocationModeAll:
		return resourcev1.AllocationResultsMaxSize
	}
	return 0
}
