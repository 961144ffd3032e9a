// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Interface is client-go's clientset with the pod writes that agents make most. A wrapper of it has to say what becomes
// of them, and runs the suite client/writetest.
type Interface interface {
	kubernetes.Interface
	// PodWrites are the writes to the pods of a namespace.
	PodWrites(namespace string) PodWrites
}

// PodWrites are the frequent writes to the pods of one namespace. In process they cost a third of client-go's (decision
// 0131). The server sees the requests that client-go makes for the same calls without options. Errors are client-go's,
// and so are retries. Returned pods are the caller's own.
type PodWrites interface {
	Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	Bind(ctx context.Context, binding *corev1.Binding) error
	// PatchStatus sends a strategic merge patch of the pod to its subresource status.
	PatchStatus(ctx context.Context, name string, patch []byte) (*corev1.Pod, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Plain makes an Interface of a clientset: PodWrites are its CoreV1().Pods().
func Plain(cs kubernetes.Interface) Interface { return plain{cs} }

type plain struct{ kubernetes.Interface }

// PodWrites is Interface's.
func (c plain) PodWrites(namespace string) PodWrites { return plainPods{c.CoreV1().Pods(namespace)} }

// IsWatchListSemanticsUnSupported passes on what client-go's informers find by a type assertion: its fakes have it.
func (c plain) IsWatchListSemanticsUnSupported() bool {
	cs, ok := c.Interface.(interface{ IsWatchListSemanticsUnSupported() bool })
	return ok && cs.IsWatchListSemanticsUnSupported()
}

type plainPods struct{ pods typedcorev1.PodInterface }

// Create is PodWrites'.
func (p plainPods) Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return p.pods.Create(ctx, pod, metav1.CreateOptions{})
}

// Bind is PodWrites'.
func (p plainPods) Bind(ctx context.Context, binding *corev1.Binding) error {
	return p.pods.Bind(ctx, binding, metav1.CreateOptions{})
}

// PatchStatus is PodWrites'.
func (p plainPods) PatchStatus(ctx context.Context, name string, patch []byte) (*corev1.Pod, error) {
	return p.pods.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// Delete is PodWrites'.
func (p plainPods) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return p.pods.Delete(ctx, name, opts)
}
