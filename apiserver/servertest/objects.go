// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// MakeNamespace creates a namespace.
func MakeNamespace(t testing.TB, c kubernetes.Interface, name string, labels map[string]string) *corev1.Namespace {
	t.Helper()
	ns, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: labels,
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// PodIn is Pod in another namespace.
func PodIn(ns, name string) *corev1.Pod {
	p := Pod(name)
	p.Namespace = ns
	return p
}

// ConfigMap is a ConfigMap of the namespace default.
func ConfigMap(name string, finalizers ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:       name,
		Namespace:  "default",
		Finalizers: finalizers,
	}}
}

// PodGVK is the kind Pod.
var PodGVK = corev1.SchemeGroupVersion.WithKind("Pod")

// Pod is a pod of the namespace default with one container.
func Pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: "default",
			Labels:    map[string]string{"app": "web"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:  "main",
			Image: "keelson.local/hello",
			Ports: []corev1.ContainerPort{{ContainerPort: 80}},
			Env: []corev1.EnvVar{
				{Name: "A", Value: "1"},
				{Name: "B", Value: "2"},
			},
		}}},
	}
}
