// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/admission"
)

// defaultTolerationSeconds lets a pod stay for five minutes on a node that is not ready or unreachable, unless the pod
// has its own tolerations.
type defaultTolerationSeconds struct{}

func (defaultTolerationSeconds) Name() string { return "DefaultTolerationSeconds" }

// Admit adds the missing ones of the two tolerations.
func (defaultTolerationSeconds) Admit(_ context.Context, req *admission.Request) error {
	pod, err := podIn(req, admission.Create, admission.Update)
	if pod == nil {
		return err
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if tolerated(pod, key) {
			continue
		}
		seconds := int64(300)
		pod.Spec.Tolerations = append(slices.Clip(pod.Spec.Tolerations), corev1.Toleration{
			Key:               key,
			Operator:          corev1.TolerationOpExists,
			Effect:            corev1.TaintEffectNoExecute,
			TolerationSeconds: &seconds,
		})
		req.Changed("spec.tolerations")
	}
	return nil
}

func tolerated(pod *corev1.Pod, key string) bool {
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}

// taintNodesByCondition taints every new node as not ready, so that no pod is scheduled to it before it is ready.
type taintNodesByCondition struct{}

func (taintNodesByCondition) Name() string { return "TaintNodesByCondition" }

// Admit adds the taint to new nodes.
func (taintNodesByCondition) Admit(_ context.Context, req *admission.Request) error {
	node, ok := req.Object.(*corev1.Node)
	if !ok || req.Operation != admission.Create || req.Subresource != "" {
		return nil
	}
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady && t.Effect == corev1.TaintEffectNoSchedule {
			return nil
		}
	}
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
		Key:    corev1.TaintNodeNotReady,
		Effect: corev1.TaintEffectNoSchedule,
	})
	req.Changed("spec.taints")
	return nil
}
