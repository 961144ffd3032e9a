// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestDeletedSharesTheObject: what a deletion shows is the object, not a copy of it, but for its resourceVersion.
func TestDeletedSharesTheObject(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "7", Labels: map[string]string{"app": "a"}},
		Spec:       corev1.PodSpec{Containers: make([]corev1.Container, 20)},
	}
	entry := NewEntry("/registry/pods/default/a", pod, 7, nil)
	gone := entry.Deleted(9)
	got, ok := gone.Object.(*corev1.Pod)
	if !ok || got == pod || got.ResourceVersion != "9" || gone.Revision != 9 || gone.Key != entry.Key ||
		pod.ResourceVersion != "7" {
		t.Fatalf("got %v at %d with %q, the object itself has %q", gone.Key, gone.Revision, got.ResourceVersion,
			pod.ResourceVersion)
	}
	if &got.Spec.Containers[0] != &pod.Spec.Containers[0] {
		t.Error("the containers were copied")
	}
	if n := testing.AllocsPerRun(100, func() { entry.Deleted(9) }); n > 4 {
		t.Errorf("%v allocations for a deletion, want 4 at most", n)
	}
}

// TestDeletedCustomObject: the metadata of a custom object is a map that others share.
func TestDeletedCustomObject(t *testing.T) {
	obj := &unstructured.Unstructured{
		Object: map[string]any{"metadata": map[string]any{"name": "a", "resourceVersion": "7"}},
	}
	gone := NewEntry("k", obj, 7, nil).Deleted(9)
	if gone.Object.GetResourceVersion() != "9" || obj.GetResourceVersion() != "7" {
		t.Errorf("got %s, and the object itself has %s; want 9 and 7", gone.Object.GetResourceVersion(),
			obj.GetResourceVersion())
	}
}
