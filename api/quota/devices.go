// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"cmp"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// DeviceClaims is the name that counts claims of devices.
const DeviceClaims corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// ofDeviceClass comes after a device class's name where its devices are limited.
const ofDeviceClass = ".deviceclass.resource.k8s.io/devices"

// View is what the usage of a ResourceClaim depends on besides the claim.
type View struct {
	// Extended is the extended resource that a DeviceClass names; "": none.
	Extended func(class string) corev1.ResourceName
	// Pod is the pod with a name; nil: there is none.
	Pod func(namespace, name string) *corev1.Pod
	// Claims are a namespace's claims.
	Claims func(namespace string) []*resourcev1.ResourceClaim
}

// DeviceClaimMeter measures ResourceClaims. A claim's spec never changes: it is charged once. Devices count by the name
// of their class, and by the names under which a pod could ask for them as extended resources, so that neither way gets
// around a quota of the other.
func DeviceClaimMeter(view View) *Meter {
	return &Meter{
		Tracks: deviceClaimTracks,
		Usage: func(obj runtime.Object, now time.Time) corev1.ResourceList {
			claim, ok := obj.(*resourcev1.ResourceClaim)
			if !ok {
				return nil
			}
			return view.usage(claim, now)
		},
	}
}

func deviceClaimTracks(n corev1.ResourceName) bool {
	return n == DeviceClaims || strings.HasSuffix(string(n), ofDeviceClass) || limitsExtended(n)
}

func (v View) usage(claim *resourcev1.ResourceClaim, now time.Time) corev1.ResourceList {
	extended := corev1.ResourceList{}
	out := corev1.ResourceList{DeviceClaims: one()}
	for class, n := range devicesOf(claim) {
		if class == "" || n <= 0 {
			continue
		}
		count := *resource.NewQuantity(n, resource.DecimalSI)
		out[corev1.ResourceName(class+ofDeviceClass)] = count
		names := []corev1.ResourceName{corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix + class)}
		if explicit := v.extended(class); explicit != "" && explicit != names[0] {
			names = append(names, explicit)
		}
		for _, name := range names {
			name = corev1.DefaultResourceRequestsPrefix + name
			extended = Sum(extended, corev1.ResourceList{name: count})
		}
	}
	if pod := v.podOf(claim); pod != nil { // it was charged for them
		extended = NonZero(Floor(Minus(extended, Only(podUsage(pod, now), Names(extended)))))
	}
	maps.Copy(out, extended)
	return out
}

func (v View) extended(class string) corev1.ResourceName {
	if v.Extended == nil {
		return ""
	}
	return v.Extended(class)
}

// devicesOf is how many devices of each class a claim can get.
func devicesOf(c *resourcev1.ResourceClaim) map[string]int64 {
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
	return devices
}

// podOf is the pod for whose extended resources the scheduler made the claim; nil: none. Anyone may write a claim that
// says so, so it must be the one that the pod names or, before it names one, the first of the pod's.
func (v View) podOf(claim *resourcev1.ResourceClaim) *corev1.Pod {
	owner := metav1.GetControllerOfNoCopy(claim)
	if v.Pod == nil || !isExtended(claim) || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	pod := v.Pod(claim.Namespace, owner.Name)
	if pod == nil || pod.UID != owner.UID {
		return nil
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		if status.ResourceClaimName != claim.Name {
			return nil
		}
		return pod
	}
	for _, other := range v.Claims(claim.Namespace) {
		if other.Name != claim.Name && isExtended(other) && metav1.IsControlledBy(other, pod) && before(other, claim) {
			return nil
		}
	}
	return pod
}

// isExtended reports whether a claim says that it was made for a pod's extended resources.
func isExtended(c *resourcev1.ResourceClaim) bool {
	return c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" && metav1.GetControllerOfNoCopy(c) != nil
}

// before reports whether claim a is older than b; a claim that is not stored yet is the youngest.
func before(a, b *resourcev1.ResourceClaim) bool {
	return b.ResourceVersion == "" ||
		cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name)) < 0
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
