// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamespaceAutoProvision creates the namespace of a new object if it is missing. Off by default.
type NamespaceAutoProvision struct{ Reader Reader }

// Name is the plugin's name.
func (NamespaceAutoProvision) Name() string { return "NamespaceAutoProvision" }

// Admit creates a missing namespace, except in a dry run.
func (p NamespaceAutoProvision) Admit(ctx context.Context, req *Request) error {
	if req.Operation != Create || req.DryRun || req.Namespace == "" ||
		req.Kind.Group == "" && req.Kind.Kind == "Namespace" {
		return nil
	}
	_, err := req.NamespaceObject(ctx, p.Reader)
	if err == nil {
		return nil
	}
	if !isNotFound(err) {
		return Forbidden(req, "%w", err)
	}
	err = req.Own.Create(ctx, namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: req.Namespace}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return Forbidden(req, "%w", err)
	}
	return nil
}
