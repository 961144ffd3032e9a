// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	"keelson/apiserver/admission"
)

// NamespaceExists rejects writes in missing namespaces. Off by default: NamespaceLifecycle includes it.
type NamespaceExists struct{ Reader admission.Reader }

// Name is the plugin's name.
func (NamespaceExists) Name() string { return "NamespaceExists" }

// Validate reads the namespace.
func (p NamespaceExists) Validate(ctx context.Context, r *admission.Request) error {
	if r.Operation == admission.Connect || r.Kind.Kind == "Namespace" && r.Kind.Group == "" {
		return nil
	}
	_, err := r.NamespaceObject(ctx, p.Reader)
	return err
}
