// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/auth/authz"
)

// TestNodesKeepTheirNames: a node writes its own endpoint slice of kube-dns and nothing by which another service's
// traffic would come to it.
func TestNodesKeepTheirNames(t *testing.T) {
	restriction := Plugin{NodeName: authz.NodeName}
	me := "node-1"
	other := "node-2"
	slice := func(edit func(*discoveryv1.EndpointSlice)) error {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system",
				Name:      "kube-dns-node-1",
				Labels: map[string]string{
					discoveryv1.LabelServiceName: "kube-dns",
				},
			},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, NodeName: &me}},
		}
		edit(s)
		r := &admission.Request{
			Operation: admission.Create,
			Resource:  schema.GroupVersionResource{Resource: "endpointslices"},
			Namespace: s.Namespace,
			Object:    s,
		}
		return restriction.Validate(t.Context(), asNode(r))
	}
	if err := slice(func(*discoveryv1.EndpointSlice) {}); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := slice(func(s *discoveryv1.EndpointSlice) { s.Name = "kube-dns6-node-1" }); err != nil {
		t.Errorf("its own of the other IP family: %v", err)
	}
	for what, edit := range map[string]func(*discoveryv1.EndpointSlice){
		"another node's":        func(s *discoveryv1.EndpointSlice) { s.Name = "kube-dns-node-2" },
		"another node's second": func(s *discoveryv1.EndpointSlice) { s.Name = "kube-dns6-node-2" },
		"another namespace":     func(s *discoveryv1.EndpointSlice) { s.Namespace = "default" },
		"another service": func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName] = "bank"
		},
		"an endpoint elsewhere":   func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = &other },
		"an endpoint of no node":  func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = nil },
		"an endpoint with a name": func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Hostname = &other },
	} {
		if slice(edit) == nil {
			t.Errorf("%s was let through", what)
		}
	}
	svc := func(op admission.Operation, edit func(*corev1.Service)) error {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}}
		edit(s)
		return restriction.Validate(t.Context(), asNode(&admission.Request{
			Operation: op,
			Resource:  schema.GroupVersionResource{Resource: "services"},
			Namespace: s.Namespace,
			Name:      s.Name,
			Object:    s,
		}))
	}
	if err := svc(admission.Create, func(*corev1.Service) {}); err != nil {
		t.Errorf("the service: %v", err)
	}
	for what, err := range map[string]error{
		"a change":          svc(admission.Update, func(*corev1.Service) {}),
		"another service":   svc(admission.Create, func(s *corev1.Service) { s.Name = "bank" }),
		"a selector":        svc(admission.Create, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} }),
		"external address":  svc(admission.Create, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }),
		"an external name":  svc(admission.Create, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
		"another namespace": svc(admission.Create, func(s *corev1.Service) { s.Namespace = "default" }),
	} {
		if err == nil {
			t.Errorf("%s was let through", what)
		}
	}
}
