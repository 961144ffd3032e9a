// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/invalid"
	"keelson/api/limits"
)

// LimitRanger sets the default requests and limits of a namespace's LimitRanges, and rejects pods and claims that
// violate them.
type LimitRanger struct{ Reader Reader }

// Name is the plugin's name.
func (LimitRanger) Name() string { return "LimitRanger" }

// Admit sets the defaults of new pods.
func (p LimitRanger) Admit(ctx context.Context, req *Request) error {
	if !isPod(req) || req.Operation != Create {
		return nil
	}
	pod, err := podOf(req)
	if err != nil {
		return err
	}
	ranges, err := list[*corev1.LimitRange](ctx, p.Reader, limitRanges, req.Namespace)
	if err != nil {
		return err
	}
	for _, lr := range ranges {
		if limits.Fill(pod, lr) {
			req.Changed("spec.containers[*].resources", "metadata.annotations")
		}
	}
	return nil
}

// Validate checks pods and claims against every LimitRange of the namespace; the error has all violations.
func (p LimitRanger) Validate(ctx context.Context, req *Request) error {
	resize := req.Subresource == "resize" && req.Operation == Update
	if req.Subresource != "" && !resize || req.Operation != Create && req.Operation != Update {
		return nil
	}
	switch req.Object.(type) {
	case *corev1.Pod:
		if req.Operation == Update && !resize {
			return nil // a pod's resources change only by the subresource resize
		}
	case *corev1.PersistentVolumeClaim:
	default:
		return nil
	}
	ranges, err := list[*corev1.LimitRange](ctx, p.Reader, limitRanges, req.Namespace)
	if err != nil {
		return err
	}
	for _, lr := range ranges {
		if errs := limits.Violations(req.Object, lr); len(errs) > 0 {
			return Forbidden(req, "%w", invalid.Errors(errs))
		}
	}
	return nil
}
