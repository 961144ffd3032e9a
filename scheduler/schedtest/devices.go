// SPDX-License-Identifier: Apache-2.0

package schedtest

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
)

// ServeDevices has a fake server know resource claims.
func ServeDevices(server kubernetes.Interface) {
	known := discoveryOf(server)
	known.Resources = append(known.Resources, &metav1.APIResourceList{
		GroupVersion: resourcev1.SchemeGroupVersion.String(),
		APIResources: []metav1.APIResource{{Name: "resourceclaims"}},
	})
}

// discoveryOf is what a fake server says that it serves.
func discoveryOf(server kubernetes.Interface) *fakediscovery.FakeDiscovery {
	return server.Discovery().(*fakediscovery.FakeDiscovery)
}

// GPU returns a claim of one device of the class gpu.
func GPU(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
				Name: "gpu",
				Exactly: &resourcev1.ExactDeviceRequest{
					DeviceClassName: "gpu",
					AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
					Count:           1,
				},
			}}},
		},
	}
}

// Wanting adds a claim to the pod.
func Wanting(claim corev1.PodResourceClaim) PodOption {
	return func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{claim} }
}
