// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/apiserver/admission"
)

// podNodeSelector adds the namespace's node selector to pods, and rejects pods with a conflicting one. Off by default.
type podNodeSelector struct {
	Reader admission.Reader
	// Selectors are the allowed node selectors by namespace; DefaultNodeSelector is the key for namespaces without an
	// annotation.
	Selectors map[string]string
}

// DefaultNodeSelector is the key of the selector for namespaces without an annotation.
const DefaultNodeSelector = "clusterDefaultNodeSelector"

const namespaceNodeSelector = "scheduler.alpha.kubernetes.io/node-selector"

func (podNodeSelector) Name() string { return "PodNodeSelector" }

// Admit adds the namespace's selector to the pod's.
func (p podNodeSelector) Admit(ctx context.Context, req *admission.Request) error {
	pod, err := podIn(req, admission.Create)
	if pod == nil {
		return err
	}
	selector, err := p.namespaceSelector(ctx, req, pod)
	if err != nil {
		return err
	}
	if merged := labels.Merge(selector, pod.Spec.NodeSelector); len(merged) > len(pod.Spec.NodeSelector) {
		pod.Spec.NodeSelector = merged
		req.Changed("spec.nodeSelector")
	}
	return p.Validate(ctx, req)
}

// Validate checks the pod's selector against the namespace's allowed one.
func (p podNodeSelector) Validate(ctx context.Context, req *admission.Request) error {
	pod, err := podIn(req, admission.Create)
	if pod == nil {
		return err
	}
	if _, err := p.namespaceSelector(ctx, req, pod); err != nil {
		return err
	}
	allowed, err := labels.ConvertSelectorToLabelsMap(p.Selectors[req.Namespace])
	if err != nil || len(allowed) == 0 {
		return err
	}
	for key, value := range pod.Spec.NodeSelector {
		if got, ok := allowed[key]; !ok || got != value {
			return p.refuse(req, pod, "pod node label selector labels conflict with its namespace whitelist")
		}
	}
	return nil
}

// namespaceSelector is the namespace's selector; an error if the pod's conflicts with it.
func (p podNodeSelector) namespaceSelector(ctx context.Context, req *admission.Request, pod *corev1.Pod) (labels.Set, error) {
	ns, err := req.NamespaceObject(ctx, p.Reader)
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[namespaceNodeSelector]
	if !ok {
		text = p.Selectors[DefaultNodeSelector]
	}
	selector, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		return nil, err
	}
	if labels.Conflicts(selector, pod.Spec.NodeSelector) {
		return nil, p.refuse(req, pod, "pod node label selector conflicts with its namespace node label selector")
	}
	return selector, nil
}

// refuse is the rejection. It names the pod; a generated name is still empty.
func (podNodeSelector) refuse(r *admission.Request, pod *corev1.Pod, why string) error {
	return apierrors.NewForbidden(r.Resource.GroupResource(), pod.Name, errors.New(why))
}
