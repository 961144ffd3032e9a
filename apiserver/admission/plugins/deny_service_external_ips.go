// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/admission"
)

// denyServiceExternalIPs rejects new external IPs of Services. Off by default.
type denyServiceExternalIPs struct{}

func (denyServiceExternalIPs) Name() string { return "DenyServiceExternalIPs" }

// Validate rejects external IPs that the old Service did not have.
func (denyServiceExternalIPs) Validate(_ context.Context, req *admission.Request) error {
	service, ok := req.Object.(*corev1.Service)
	if !ok || req.Subresource != "" || req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	var before []string
	if old, ok := req.OldObject.(*corev1.Service); ok {
		before = old.Spec.ExternalIPs
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !slices.Contains(before, ip) {
			return admission.Forbidden(req, "Use of external IPs is denied by admission control")
		}
	}
	return nil
}
