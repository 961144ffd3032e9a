// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"keelson/api/limits"
)

// LimitRanger sets the default requests and limits of a namespace's LimitRanges, and rejects pods and claims that
// violate them.
type LimitRanger struct{ Reader Reader }

// Name is the plugin's name.
func (LimitRanger) Name() string { return "LimitRanger" }

// Admit sets the defaults of new pods.
func (p LimitRanger) Admit(ctx context.Context, r *Request) error {
	if !isPod(r) || r.Operation != Create {
		return nil
	}
	pod, err := podOf(r)
	if err != nil {
		return err
	}
	ranges, err := list[*corev1.LimitRange](ctx, p.Reader, limitRanges, r.Namespace)
	if err != nil {
		return err
	}
	for _, lr := range ranges {
		if limits.Fill(pod, lr) {
			r.Changed("spec.containers[*].resources", "metadata.annotations")
		}
	}
	return nil
}

// Validate checks pods and claims against every LimitRange of the namespace; the error has all violations.
func (p LimitRanger) Validate(ctx context.Context, r *Request) error {
	resize := r.Subresource == "resize" && r.Operation == Update
	if r.Subresource != "" && !resize || r.Operation != Create && r.Operation != Update {
		return nil
	}
	switch r.Object.(type) {
	case *corev1.Pod:
		if r.Operation == Update && !resize {
			return nil // a pod's resources change only by the subresource resize
		}
	case *corev1.PersistentVolumeClaim:
	default:
		return nil
	}
	ranges, err := list[*corev1.LimitRange](ctx, p.Reader, limitRanges, r.Namespace)
	if err != nil {
		return err
	}
	for _, lr := range ranges {
		if errs := limits.Violations(r.Object, lr); len(errs) > 0 {
			return Forbidden(r, "%w", utilerrors.NewAggregate(errs))
		}
	}
	return nil
}
