// SPDX-License-Identifier: Apache-2.0

package downward

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestLimitOfThePod: a container without a limit has the pod's, and without that what the node can give.
func TestLimitOfThePod(t *testing.T) {
	cpu := func(quantity string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
	}
	whole := &corev1.Pod{Spec: corev1.PodSpec{Resources: &corev1.ResourceRequirements{Limits: cpu("2")}}}
	own := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: cpu("1")}}
	for _, tt := range []struct {
		pod       *corev1.Pod
		container *corev1.Container
		want      string
	}{
		{whole, own, "1"},
		{whole, &corev1.Container{}, "2"},
		{&corev1.Pod{}, &corev1.Container{}, "8"},
	} {
		got, err := Resource(tt.pod, tt.container, &corev1.ResourceFieldSelector{Resource: "limits.cpu"}, cpu("8"))
		if err != nil || got != tt.want {
			t.Errorf("limits.cpu: %q, %v; want %s", got, err, tt.want)
		}
	}
}
