// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ServedByClaim reports whether a pod has an extended resource as devices of a ResourceClaim, which the scheduler has
// allocated: the node gives none of it.
func ServedByClaim(p *corev1.Pod, name corev1.ResourceName) bool {
	s := p.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ResourceName == string(name)
	})
}
