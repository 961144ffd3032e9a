// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"keelson/apiserver/admission"
)

// runtimeClass sets a pod's overhead, node selector and tolerations from its runtime class.
type runtimeClass struct{ Reader admission.Reader }

var runtimeClasses = nodev1.SchemeGroupVersion.WithResource("runtimeclasses")

func (runtimeClass) Name() string { return "RuntimeClass" }

const overheadDiffers = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"

// class returns a new pod's class; nil if it has none.
func (p runtimeClass) class(ctx context.Context, r *admission.Request) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	pod, err := podIn(r, admission.Create)
	if pod == nil || pod.Spec.RuntimeClassName == nil {
		return pod, nil, err
	}
	rc, err := admission.Get[*nodev1.RuntimeClass](ctx, p.Reader, runtimeClasses, "", *pod.Spec.RuntimeClassName)
	if admission.IsNotFound(err) {
		err = admission.Forbidden(r, "pod rejected: RuntimeClass %q not found", *pod.Spec.RuntimeClassName)
	}
	return pod, rc, err
}

// Admit sets the fields from the class.
func (p runtimeClass) Admit(ctx context.Context, req *admission.Request) error {
	pod, rc, err := p.class(ctx, req)
	if err != nil || rc == nil {
		return err
	}
	if rc.Overhead != nil && rc.Overhead.PodFixed != nil {
		if pod.Spec.Overhead != nil && !apiequality.Semantic.DeepEqual(rc.Overhead.PodFixed, pod.Spec.Overhead) {
			return admission.Forbidden(req, overheadDiffers)
		}
		if pod.Spec.Overhead == nil {
			req.Changed("spec.overhead")
		}
		pod.Spec.Overhead = rc.Overhead.PodFixed.DeepCopy()
	}
	if rc.Scheduling == nil {
		return nil
	}
	selector := maps.Clone(pod.Spec.NodeSelector)
	for key, value := range rc.Scheduling.NodeSelector {
		if own, ok := selector[key]; ok && own != value {
			return admission.Forbidden(req,
				"conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] "+
					"= %s", key, value, key, own)
		}
		if selector == nil {
			selector = map[string]string{}
		}
		selector[key] = value
	}
	if !maps.Equal(selector, pod.Spec.NodeSelector) {
		pod.Spec.NodeSelector = selector
		req.Changed("spec.nodeSelector")
	}
	for _, t := range rc.Scheduling.Tolerations {
		if !hasToleration(pod.Spec.Tolerations, &t) {
			pod.Spec.Tolerations = append(slices.Clip(pod.Spec.Tolerations), *t.DeepCopy())
			req.Changed("spec.tolerations")
		}
	}
	return nil
}

func hasToleration(list []corev1.Toleration, t *corev1.Toleration) bool {
	for i := range list {
		if apiequality.Semantic.DeepEqual(&list[i], t) {
			return true
		}
	}
	return false
}

// Validate checks that the overhead is the class's.
func (p runtimeClass) Validate(ctx context.Context, req *admission.Request) error {
	pod, rc, err := p.class(ctx, req)
	if err != nil || pod == nil {
		return err
	}
	switch {
	case rc == nil || rc.Overhead == nil || rc.Overhead.PodFixed == nil:
		if pod.Spec.Overhead != nil {
			return admission.Forbidden(req,
				"pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
		}
	case !apiequality.Semantic.DeepEqual(rc.Overhead.PodFixed, pod.Spec.Overhead):
		return admission.Forbidden(req, overheadDiffers)
	}
	return nil
}
