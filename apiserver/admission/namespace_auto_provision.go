// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamespaceAutoProvision makes the namespace that a new object is put into. Off by default.
type NamespaceAutoProvision struct {
	Reader Reader
	// Create makes a namespace.
	Create func(ctx context.Context, ns *corev1.Namespace) error
}

// Name is the plugin's name.
func (NamespaceAutoProvision) Name() string { return "NamespaceAutoProvision" }

// Admit makes the namespace where it is missing, unless nothing is to be stored.
func (p NamespaceAutoProvision) Admit(ctx context.Context, r *Request) error {
	if r.Operation != Create || r.DryRun || r.Namespace == "" || r.Kind.Group == "" && r.Kind.Kind == "Namespace" {
		return nil
	}
	_, err := r.NamespaceObject(ctx, p.Reader)
	if err == nil {
		return nil
	}
	if !isNotFound(err) {
		return Forbidden(r, "%w", err)
	}
	err = p.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.Namespace}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return Forbidden(r, "%w", err)
	}
	return nil
}
