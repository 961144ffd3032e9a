// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
)

// namespaceLifecycle rejects new objects in namespaces that are missing or being deleted, and the deletion of the
// system namespaces.
type namespaceLifecycle struct{ Reader admission.Reader }

func (namespaceLifecycle) Name() string { return "NamespaceLifecycle" }

var undeletable = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// Admit runs before the other plugins, so that they can rely on the namespace. It changes nothing.
func (p namespaceLifecycle) Admit(ctx context.Context, req *admission.Request) error {
	if req.Resource == admission.Namespaces {
		if req.Operation == admission.Delete && req.Subresource == "" && slices.Contains(undeletable, req.Name) {
			return admission.Forbidden(req, "this namespace may not be deleted")
		}
		return nil
	}
	// What is left of a namespace that is gone can be updated: its finalizers could not be removed otherwise.
	if req.Namespace == "" || req.Operation != admission.Create ||
		req.Resource.Resource == "localsubjectaccessreviews" {
		return nil
	}
	ns, err := req.NamespaceObject(ctx, p.Reader)
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp == nil && ns.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	e := admission.Forbidden(req,
		"unable to create new content in namespace %s because it is being terminated", req.Namespace)
	e.ErrStatus.Details.Causes = append(e.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", req.Namespace),
		Field:   "metadata.namespace",
	})
	return e
}
