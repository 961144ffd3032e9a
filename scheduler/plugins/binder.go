// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"keelson/client"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// DefaultBinder binds a pod to its node by the pods/binding subresource.
type DefaultBinder struct{ Client client.Interface }

// Plugin returns the descriptor.
func (b *DefaultBinder) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name: "DefaultBinder",
		Bind: b.Bind,
	}
}

// bindTries are the tries of a binding whose failure may pass: then the pod need not look for a node again.
var bindTries = wait.Backoff{Steps: 4, Duration: 50 * time.Millisecond, Factor: 3, Jitter: 0.1}

// passes reports whether a failure has to do with the server's state, not with the pod or the node.
func passes(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTooManyRequests(err) || utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err)
}

// Bind sends the pod's UID, so that a new pod of the same name is not bound. A binding that took effect although its
// answer was lost is refused the second time, like one that another scheduler made: the pod's event shows which it was.
func (b *DefaultBinder) Bind(ctx context.Context, _ *framework.CycleState, pod *state.PodInfo, node string) error {
	p := pod.Pod
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	err := retry.OnError(bindTries, func(err error) bool { return ctx.Err() == nil && passes(err) }, func() error {
		return b.Client.PodWrites(p.Namespace).Bind(ctx, binding)
	})
	if err != nil {
		return fmt.Errorf("bind pod %s to node %s: %w", pod.Key, node, err)
	}
	return nil
}
