// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
)

// namespaceAutoProvision creates the namespace of a new object if it is missing. Off by default.
type namespaceAutoProvision struct{ Reader admission.Reader }

func (namespaceAutoProvision) Name() string { return "NamespaceAutoProvision" }

// Admit creates a missing namespace, except in a dry run.
func (p namespaceAutoProvision) Admit(ctx context.Context, req *admission.Request) error {
	if req.Operation != admission.Create || req.DryRun || req.Namespace == "" ||
		req.Kind.Group == "" && req.Kind.Kind == "Namespace" {
		return nil
	}
	_, err := req.NamespaceObject(ctx, p.Reader)
	if err == nil {
		return nil
	}
	if !admission.IsNotFound(err) {
		return admission.Forbidden(req, "%w", err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: req.Namespace}}
	err = req.Own.Create(ctx, admission.Namespaces, namespace)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return admission.Forbidden(req, "%w", err)
	}
	return nil
}
