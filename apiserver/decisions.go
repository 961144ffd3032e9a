// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/api/kind"
	"keelson/apiserver/access"
)

var podsGVR = corev1.SchemeGroupVersion.WithResource("pods")

// podDecisions serves PodDecisions of existing pods only: a reader of a namespace must not learn about earlier pods in
// it.
type podDecisions struct {
	reader *access.Reader
	lookup func(types.UID) *decisions.PodDecision
}

// Get returns the decision about one pod.
func (p podDecisions) Get(ctx context.Context, namespace, name string) (kind.Object, error) {
	missing := apierrors.NewNotFound(decisions.GroupVersion.WithResource("poddecisions").GroupResource(), name)
	obj, err := p.reader.Get(ctx, podsGVR, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		if d := p.decision(pod); d != nil {
			return d, nil
		}
	}
	missing.ErrStatus.Message += ": this server remembers no scheduling attempt for the pod: none was made, it was " +
		"made before the server started or " +
		"too long ago, or its scheduler does not report here"
	return nil, missing
}

// List returns the decisions about the selected pods.
func (p podDecisions) List(
	ctx context.Context, namespace string, l labels.Selector, f fields.Selector,
) ([]kind.Object, error) {
	pods, err := p.reader.Select(ctx, podsGVR, namespace, l, f)
	if err != nil {
		return nil, err
	}
	var out []kind.Object
	for _, obj := range pods {
		if pod, ok := obj.(*corev1.Pod); ok {
			if d := p.decision(pod); d != nil {
				out = append(out, d)
			}
		}
	}
	return out, nil
}

func (p podDecisions) decision(pod *corev1.Pod) *decisions.PodDecision {
	if p.lookup == nil {
		return nil
	}
	podDecision := p.lookup(pod.UID)
	if podDecision == nil {
		return nil
	}
	podDecision.ObjectMeta = metav1.ObjectMeta{
		Name:              pod.Name,
		Namespace:         pod.Namespace,
		Labels:            pod.Labels,
		CreationTimestamp: podDecision.CreationTimestamp,
	}
	podDecision.Status.PodUID = pod.UID
	return podDecision
}
