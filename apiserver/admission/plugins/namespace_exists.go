// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	"keelson/apiserver/admission"
)

// namespaceExists rejects writes in missing namespaces. Off by default: NamespaceLifecycle includes it.
type namespaceExists struct{ Reader admission.Reader }

func (namespaceExists) Name() string { return "NamespaceExists" }

// Validate reads the namespace.
func (p namespaceExists) Validate(ctx context.Context, r *admission.Request) error {
	if r.Operation == admission.Connect || r.Kind.Kind == "Namespace" && r.Kind.Group == "" {
		return nil
	}
	_, err := r.NamespaceObject(ctx, p.Reader)
	return err
}
