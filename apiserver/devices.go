// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/auth"
)

// guardDevices rejects claims with admin access to devices in namespaces without the label for it (KEP-5018). It runs before next, which
// may be nil.
func (s *Server) guardDevices(of schema.GroupResource, next Guard) Guard {
	if of.Group != resourcev1.GroupName || of.Resource != "resourceclaims" && of.Resource != "resourceclaimtemplates" {
		return next
	}
	return func(ctx context.Context, u *auth.User, namespace string, obj, old runtime.Object) error {
		if old == nil {
			if err := s.adminAccess(ctx, namespace, obj); err != nil {
				return err
			}
		}
		if next == nil {
			return nil
		}
		return next(ctx, u, namespace, obj, old)
	}
}

func (s *Server) adminAccess(ctx context.Context, namespace string, obj runtime.Object) error {
	var requests []resourcev1.DeviceRequest
	var kind, name string
	switch o := obj.(type) {
	case *resourcev1.ResourceClaim:
		requests, kind, name = o.Spec.Devices.Requests, "ResourceClaim", o.Name
	case *resourcev1.ResourceClaimTemplate:
		requests, kind, name = o.Spec.Spec.Devices.Requests, "ResourceClaimTemplate", o.Name
	}
	i := slices.IndexFunc(requests, func(r resourcev1.DeviceRequest) bool {
		return r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess
	})
	if i < 0 {
		return nil
	}
	found, err := s.reader.Get(ctx, corev1.SchemeGroupVersion.WithResource("namespaces"), "", namespace)
	if err != nil {
		return fmt.Errorf("admin access to devices: namespace %s: %w", namespace, err)
	}
	if ns, ok := found.(*corev1.Namespace); ok && ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
		return nil
	}
	path := field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess")
	return apierrors.NewInvalid(schema.GroupKind{Group: resourcev1.GroupName, Kind: kind}, name, field.ErrorList{field.Forbidden(path,
		fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey))})
}
