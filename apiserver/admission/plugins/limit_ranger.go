// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/invalid"
	"keelson/api/limits"
	"keelson/apiserver/admission"
)

var limitRanges = corev1.SchemeGroupVersion.WithResource("limitranges")

// limitRanger sets the default requests and limits of a namespace's LimitRanges, and rejects pods and claims that
// violate them.
type limitRanger struct{ Reader admission.Reader }

func (limitRanger) Name() string { return "LimitRanger" }

// Admit sets the defaults of new pods.
func (p limitRanger) Admit(ctx context.Context, req *admission.Request) error {
	pod, err := podIn(req, admission.Create)
	if pod == nil {
		return err
	}
	ranges, err := admission.List[*corev1.LimitRange](ctx, p.Reader, limitRanges, req.Namespace)
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
func (p limitRanger) Validate(ctx context.Context, req *admission.Request) error {
	resize := req.Subresource == "resize" && req.Operation == admission.Update
	if req.Subresource != "" && !resize || req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	switch req.Object.(type) {
	case *corev1.Pod:
		if req.Operation == admission.Update && !resize {
			return nil // a pod's resources change only by the subresource resize
		}
	case *corev1.PersistentVolumeClaim:
	default:
		return nil
	}
	ranges, err := admission.List[*corev1.LimitRange](ctx, p.Reader, limitRanges, req.Namespace)
	if err != nil {
		return err
	}
	for _, lr := range ranges {
		if errs := limits.Violations(req.Object, lr); len(errs) > 0 {
			return admission.Forbidden(req, "%w", invalid.Errors(errs))
		}
	}
	return nil
}
