// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/resources"
	"keelson/apiserver/admission"
)

// podResizeValidator rejects a resize of a bound pod beyond the node's allocatable resources, and on nodes that do not
// support it.
type podResizeValidator struct{ Reader admission.Reader }

func (podResizeValidator) Name() string { return "PodResizeValidator" }

// Validate checks changes of a pod's resources.
func (p podResizeValidator) Validate(ctx context.Context, req *admission.Request) error {
	if req.Resource != admission.Pods || req.Subresource != "resize" || req.Operation != admission.Update {
		return nil
	}
	pod, err := admission.PodOf(req)
	if err != nil {
		return err
	}
	old, ok := req.OldObject.(*corev1.Pod)
	if pod.Spec.NodeName == "" || ok && old.Generation == pod.Generation {
		return nil
	}
	node, err := nodeOf(ctx, p.Reader, req, pod)
	if err != nil {
		return err
	}
	if system, ok := node.Labels[corev1.LabelOSStable]; ok && system != "linux" {
		return withCause("UnsupportedPlatform",
			admission.Forbidden(req, "pod resize is only supported on linux nodes, node %q is %q", node.Name, system))
	}
	if short := exceededResources(pod, node); len(short) > 0 {
		return withCause("NodeCapacity", admission.Forbidden(req, "node didn't have enough allocatable resources: %s",
			strings.Join(short, "; ")))
	}
	return nil
}

// nodeOf is the node of a pod; without it the request is rejected.
func nodeOf(ctx context.Context, reader admission.Reader, r *admission.Request, pod *corev1.Pod) (*corev1.Node, error) {
	node, err := admission.Get[*corev1.Node](ctx, reader, admission.Nodes, "", pod.Spec.NodeName)
	switch {
	case admission.IsNotFound(err):
		return nil, admission.Forbidden(r, "node %q not found", pod.Spec.NodeName)
	case err != nil:
		return nil, admission.Forbidden(r, "failed to get node %q: %w", pod.Spec.NodeName, err)
	}
	return node, nil
}

// withCause adds a cause to a rejection.
func withCause(cause metav1.CauseType, refusal *apierrors.StatusError) error {
	refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	return refusal
}

// exceededResources lists the pod's requests that exceed the node.
func exceededResources(pod *corev1.Pod, node *corev1.Node) []string {
	var out []string
	asked := resources.Requests(pod)
	if want, has := asked.Cpu().MilliValue(), node.Status.Allocatable.Cpu().MilliValue(); want > has {
		out = append(out, fmt.Sprintf("cpu, requested: %d, allocatable: %d", want, has))
	}
	if want, has := asked.Memory().Value(), node.Status.Allocatable.Memory().Value(); want > has {
		out = append(out, fmt.Sprintf("memory, requested: %d, allocatable: %d", want, has))
	}
	return out
}
