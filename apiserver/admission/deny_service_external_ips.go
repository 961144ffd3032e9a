// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// DenyServiceExternalIPs keeps new external addresses out of services. Off by default.
type DenyServiceExternalIPs struct{}

// Name is the plugin's name.
func (DenyServiceExternalIPs) Name() string { return "DenyServiceExternalIPs" }

// Validate refuses external addresses that were not there before.
func (DenyServiceExternalIPs) Validate(_ context.Context, r *Request) error {
	service, ok := r.Object.(*corev1.Service)
	if !ok || r.Subresource != "" || r.Operation != Create && r.Operation != Update {
		return nil
	}
	var before []string
	if old, ok := r.OldObject.(*corev1.Service); ok {
		before = old.Spec.ExternalIPs
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !slices.Contains(before, ip) {
			return Forbidden(r, "Use of external IPs is denied by admission control")
		}
	}
	return nil
}
