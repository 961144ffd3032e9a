// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// TestTokenNamesAnAdvertisedAddress: other machines are sent to an address that a server advertises, not to the one on
// which it listens; a name is kept, since it may be a load balancer's.
func TestTokenNamesAnAdvertisedAddress(t *testing.T) {
	for _, tt := range []struct {
		name, kubeconfig string
		endpoints        []string
		want             string // empty: an error
	}{
		{"advertised", "https://10.0.0.5:6443", []string{"10.0.0.4", "10.0.0.5"}, "https://10.0.0.5:6443"},
		{"listens elsewhere", "https://10.0.0.5:6443", []string{"192.0.2.5"}, "https://192.0.2.5:6443"},
		{"loopback", "https://127.0.0.1:6443", []string{"192.0.2.5"}, "https://192.0.2.5:6443"},
		{"a name", "https://api.example.com:6443", []string{"192.0.2.5"}, "https://api.example.com:6443"},
		{"no endpoint", "https://10.0.0.5:6443", nil, "https://10.0.0.5:6443"},
		{"for pods only", "https://10.0.0.5:6443", []string{"10.244.0.1"}, "https://10.0.0.5:6443"},
		{"for this machine only", "https://localhost:6443", []string{"10.244.0.1"}, ""},
	} {
		port := int32(6443)
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespaceDefault,
				Name:      "kubernetes",
				Labels:    map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
			},
			Ports: []discoveryv1.EndpointPort{{Port: &port}},
		}
		for _, ip := range tt.endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
		}
		cl := fake.NewClientset(slice, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Spec:       corev1.NodeSpec{PodCIDR: "10.244.0.0/24"},
		})
		got, err := externalServer(t.Context(), cl, &rest.Config{Host: tt.kubeconfig})
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: got %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}
