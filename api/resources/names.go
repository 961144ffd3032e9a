// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// IsHugePages reports whether name is hugepages-<size>.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// IsNative reports whether name has no domain or is in the kubernetes.io domain.
func IsNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// IsExtended reports whether name is one of device plugins and the like: it has a domain of its own, and
// "requests.<name>" is a valid quota name too.
func IsExtended(name corev1.ResourceName) bool {
	if IsNative(name) || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// IsDeviceClass reports whether name is the extended resource that every DeviceClass serves implicitly:
// deviceclass.resource.kubernetes.io/NAME.
func IsDeviceClass(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix)
}

// IsAttachable reports whether name is attachable-volumes-<plugin>.
func IsAttachable(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix)
}

// MayOvercommit reports whether the resource's request may be lower than its limit.
func MayOvercommit(name corev1.ResourceName) bool { return IsNative(name) && !IsHugePages(name) }

// IsContainer reports whether name is a resource without a domain that a container may ask for.
func IsContainer(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return IsHugePages(name)
}

// standard are the names without a domain that the API knows, containers' own and those of quota and limit ranges.
var standard = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceRequestsStorage, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
}

// IsStandard reports whether name has no domain and means something anywhere in the API.
func IsStandard(name corev1.ResourceName) bool {
	return slices.Contains(standard, name) || IsHugePages(name) ||
		strings.HasPrefix(string(name), "requests.hugepages-")
}

// wholes are counted in whole numbers.
var wholes = []corev1.ResourceName{
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
}

// IsWhole reports whether the resource exists only in whole numbers.
func IsWhole(name corev1.ResourceName) bool { return slices.Contains(wholes, name) || IsExtended(name) }

// quotas are the names without a domain that a quota can limit.
var quotas = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage,
	corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets,
	corev1.ResourcePersistentVolumeClaims, corev1.ResourceConfigMaps, corev1.ResourceServicesNodePorts,
	corev1.ResourceServicesLoadBalancers,
}

// IsQuota reports whether name has no domain and a quota can limit it.
func IsQuota(name corev1.ResourceName) bool {
	return slices.Contains(quotas, name) || IsHugePages(name) || strings.HasPrefix(string(name), "requests.hugepages-")
}

// Whole reports whether q is a whole number: bytes cannot be split.
func Whole(q *resource.Quantity) bool { return q.MilliValue()%1000 == 0 }

// RoundUp rounds to thousandths, the finest the API keeps.
func RoundUp(list corev1.ResourceList) {
	for name, q := range list {
		if !q.RoundUp(resource.Milli) {
			list[name] = q
		}
	}
}
