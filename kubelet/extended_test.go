// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestServedByClaim: a resource that a pod has by a claim is not the node's to give, nor does the pod take any of it
// from others.
func TestServedByClaim(t *testing.T) {
	const card = "example.com/card"
	asking := func(claim bool) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{card: resource.MustParse("1")},
			},
		}}}}
		if claim {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
				ResourceClaimName: "x",
				RequestMappings: []corev1.ContainerExtendedResourceRequest{
					{ContainerName: "c", ResourceName: card, RequestName: "r"},
				},
			}
		}
		return p
	}
	for _, tt := range []struct {
		name   string
		pod    *corev1.Pod
		other  *corev1.Pod
		offers string
		lacks  int
	}{
		{"the plugin has none", asking(false), nil, "0", 1},
		{"a claim has", asking(true), nil, "0", 0},
		{"another has it of the plugin", asking(false), asking(false), "1", 1},
		{"another has it by a claim", asking(false), asking(true), "1", 0},
	} {
		var others []*corev1.Pod
		if tt.other != nil {
			others = append(others, tt.other)
		}
		if got := insufficientResources(tt.pod, nil, corev1.ResourceList{card: resource.MustParse(tt.offers)},
			others); len(got) != tt.lacks {
			t.Errorf("%s: it lacks %v", tt.name, got)
		}
	}
}
