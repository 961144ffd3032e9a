// SPDX-License-Identifier: Apache-2.0

package downward

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestResource: a limit is the container's, the pod's, or what the node can give; a limit of huge pages and a request
// are the container's or 0, whatever the pod has. Divisors round up.
func TestResource(t *testing.T) {
	list := func(cpu, memory, storage, huge string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, quantity := range map[corev1.ResourceName]string{
			corev1.ResourceCPU:              cpu,
			corev1.ResourceMemory:           memory,
			corev1.ResourceEphemeralStorage: storage,
			"hugepages-2Mi":                 huge,
		} {
			if quantity != "" {
				out[name] = resource.MustParse(quantity)
			}
		}
		return out
	}
	node := list("8", "16Gi", "100Gi", "64Mi")
	plain := &corev1.Pod{}
	whole := &corev1.Pod{Spec: corev1.PodSpec{Resources: &corev1.ResourceRequirements{
		Limits:   list("2", "200Mi", "", "32Mi"),
		Requests: list("500m", "100Mi", "", "32Mi"),
	}}}
	none := &corev1.Container{}
	own := &corev1.Container{Resources: corev1.ResourceRequirements{
		Limits:   list("1500m", "7Ei", "1Gi", "4Mi"),
		Requests: list("250m", "10Mi", "1Mi", "4Mi"),
	}}
	half := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: list("1", "", "", "")}}
	for _, tt := range []struct {
		what      string
		pod       *corev1.Pod
		container *corev1.Container
		resource  string
		divisor   string
		want      string
	}{
		{"the container's", whole, own, "limits.cpu", "", "2"},
		{"the container's, in thousandths", whole, own, "limits.cpu", "1m", "1500"},
		{"the pod's", whole, none, "limits.cpu", "", "2"},
		{"the pod's, in thousandths", whole, none, "limits.cpu", "1m", "2000"},
		{"the node's", plain, none, "limits.cpu", "", "8"},
		{"the container has another limit", whole, half, "limits.memory", "1Mi", "200"},
		{"the pod's, in bytes", whole, none, "limits.memory", "", "209715200"},
		{"the pod's, rounded up", whole, none, "limits.memory", "1Gi", "1"},
		{"the node's", plain, none, "limits.memory", "1Gi", "16"},
		{"almost all that a quantity can be", plain, own, "limits.memory", "2Ei", "4"},
		{"pods have no such limit", whole, none, "limits.ephemeral-storage", "1Gi", "100"},
		{"the container's", whole, own, "limits.ephemeral-storage", "1Mi", "1024"},
		{"the container's", whole, own, "limits.hugepages-2Mi", "1Mi", "4"},
		{"huge pages are the container's alone", whole, none, "limits.hugepages-2Mi", "1Mi", "0"},
		{"the node has some", plain, none, "limits.hugepages-2Mi", "", "0"},
		{"the container's", whole, own, "requests.cpu", "1m", "250"},
		{"rounded up", whole, own, "requests.cpu", "", "1"},
		{"not the pod's", whole, none, "requests.cpu", "1m", "0"},
		{"not the pod's", whole, none, "requests.memory", "", "0"},
		{"the container's", whole, own, "requests.memory", "1Mi", "10"},
		{"the container's", whole, own, "requests.ephemeral-storage", "1Ki", "1024"},
		{"the container's", whole, own, "requests.hugepages-2Mi", "", "4194304"},
		{"not the pod's", whole, none, "requests.hugepages-2Mi", "", "0"},
	} {
		selector := &corev1.ResourceFieldSelector{Resource: tt.resource}
		if tt.divisor != "" {
			selector.Divisor = resource.MustParse(tt.divisor)
		}
		got, err := Resource(tt.pod, tt.container, selector, node)
		if err != nil || got != tt.want {
			t.Errorf("%s / %s, %s: %q, %v; want %s", tt.resource, tt.divisor, tt.what, got, err, tt.want)
		}
	}
	for _, wrong := range []string{"limits.example.com/gpu", "limits", "claims.cpu", "requests.pods"} {
		if got, err := Resource(whole, own, &corev1.ResourceFieldSelector{Resource: wrong}, node); err == nil {
			t.Errorf("%s: got %q, want an error", wrong, got)
		}
	}
}
