// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/declared"
)

// NodeDeclaredFeatureValidator rejects updates of a bound pod that need a feature which the node does not declare.
type NodeDeclaredFeatureValidator struct{ Reader Reader }

// Name is the plugin's name.
func (NodeDeclaredFeatureValidator) Name() string { return "NodeDeclaredFeatureValidator" }

// Validate checks updates and resizes of pods.
func (p NodeDeclaredFeatureValidator) Validate(ctx context.Context, r *Request) error {
	if r.Resource != pods || r.Operation != Update || r.Subresource != "" && r.Subresource != "resize" {
		return nil
	}
	pod, err := podOf(r)
	if err != nil {
		return err
	}
	old, ok := r.OldObject.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || old.Generation == pod.Generation {
		return nil
	}
	needs := declared.ToChange(old, pod)
	if needs.IsEmpty() {
		return nil
	}
	node, err := nodeOf(ctx, p.Reader, r, pod)
	if err != nil {
		return err
	}
	if missing := declared.Missing(needs, node); len(missing) > 0 {
		return Forbidden(r, "pod update requires features %s which are not available on node %q",
			strings.Join(missing, ", "), node.Name)
	}
	return nil
}
