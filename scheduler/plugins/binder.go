// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// DefaultBinder binds a pod to its node by the pods/binding subresource.
type DefaultBinder struct{ Client kubernetes.Interface }

// Name returns the plugin's name.
func (*DefaultBinder) Name() string { return "DefaultBinder" }

// Bind sends the pod's UID, so that a new pod of the same name is not bound.
func (b *DefaultBinder) Bind(ctx context.Context, _ *framework.CycleState, pod *state.PodInfo, node string) error {
	p := pod.Pod
	err := b.Client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("bind pod %s to node %s: %w", pod.Key, node, err)
	}
	return nil
}
