// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/declared"
	"keelson/apiserver/admission"
)

// nodeDeclaredFeatureValidator rejects updates of a bound pod that need a feature which the node does not declare.
type nodeDeclaredFeatureValidator struct{ Reader admission.Reader }

func (nodeDeclaredFeatureValidator) Name() string { return "NodeDeclaredFeatureValidator" }

// Validate checks updates and resizes of pods.
func (p nodeDeclaredFeatureValidator) Validate(ctx context.Context, req *admission.Request) error {
	if req.Resource != admission.Pods || req.Operation != admission.Update ||
		req.Subresource != "" && req.Subresource != "resize" {
		return nil
	}
	pod, err := admission.PodOf(req)
	if err != nil {
		return err
	}
	old, ok := req.OldObject.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || old.Generation == pod.Generation {
		return nil
	}
	needs := declared.ToChange(old, pod)
	if needs.IsEmpty() {
		return nil
	}
	node, err := nodeOf(ctx, p.Reader, req, pod)
	if err != nil {
		return err
	}
	if missing := declared.Missing(needs, node); len(missing) > 0 {
		return admission.Forbidden(req, "pod update requires features %s which are not available on node %q",
			strings.Join(missing, ", "), node.Name)
	}
	return nil
}
