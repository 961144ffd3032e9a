// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
	"keelson/apiserver/admission/noderestriction"
)

func TestServiceExternalIPs(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Spec.PodCIDRs = []string{"10.42.1.0/24", "fd42:1::/64"}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	hostile := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hostile"}}
	hostile.Status.DaemonEndpoints.KubeletEndpoint.Port = 443
	apis := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default",
		Name:      "kubernetes",
		Labels:    map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
	}}
	apis.Ports = []discoveryv1.EndpointPort{{Port: new(int32(6443))}}
	serviceExternalIPs := serviceExternalIPs{
		Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Nodes: {node, hostile},
			endpointSlices:  {apis},
			serviceCIDRs: {&networkingv1.ServiceCIDR{
				Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd96::/112"}},
			}},
		}),
		PodRanges: noderestriction.PodRanges{Cluster: []netip.Prefix{netip.MustParsePrefix("10.44.0.0/16")}},
	}
	service := func(port int32, ips ...string) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "s"}}
		s.Spec.ExternalIPs = ips
		s.Spec.Ports = []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}, {Port: port}}
		return s
	}
	for _, row := range []struct {
		what     string
		now, old *corev1.Service
		refused  string
	}{
		{"outside", service(80, "203.0.113.7", "2001:db8::7"), nil, ""},
		{"none", service(6443), nil, ""},
		{"a port that a node claims for its kubelet", service(443, "203.0.113.7"), nil, ""},
		{
			"a pod", service(80, "203.0.113.7", "10.42.1.9"), nil, "spec.externalIPs[1]: 10.42.1.9 is in " +
				"10.42.1.0/24, the range of pods: use an address outside the cluster",
		},
		{
			"a pod to come", service(80, "10.44.9.9"), nil, "spec.externalIPs[0]: 10.44.9.9 is in 10.44.0.0/16, the " +
				"range of pods: use an address outside the cluster",
		},
		{
			"IPv6", service(80, "fd42:1::9"), nil, "spec.externalIPs[0]: fd42:1::9 is in fd42:1::/64, the range of " +
				"pods: use an address outside the cluster",
		},
		{
			"IPv4 in IPv6", service(80, "::ffff:10.42.1.9"), nil, "spec.externalIPs[0]: ::ffff:10.42.1.9 is in " +
				"10.42.1.0/24, the range of pods: use an address outside the cluster",
		},
		{
			"a cluster IP", service(80, "10.96.0.10"), nil, "spec.externalIPs[0]: 10.96.0.10 is in 10.96.0.0/16, the " +
				"range of Services: use an address outside the cluster",
		},
		{
			"the API's port", service(6443, "192.0.2.1"), nil,
			"spec.ports: port 6443 is that of the API server: a Service with externalIPs needs another one",
		},
		{
			"a kubelet's port", service(10250, "192.0.2.1"), nil,
			"spec.ports: port 10250 is that of kubelets: a Service with externalIPs needs another one",
		},
		{"unchanged", service(80, "10.42.1.9"), service(80, "10.42.1.9"), ""},
		{"one of two removed", service(6443, "10.42.1.9"), service(6443, "10.42.1.9", "203.0.113.7"), ""},
		{
			"another port", service(6443, "192.0.2.1"), service(80, "192.0.2.1"),
			"spec.ports: port 6443 is that of the API server: a Service with externalIPs needs another one",
		},
	} {
		req := &admission.Request{
			Operation: admission.Create,
			Resource:  corev1.SchemeGroupVersion.WithResource("services"),
			Name:      "s",
			Namespace: "dev",
			Object:    row.now,
		}
		if row.old != nil {
			req.Operation = admission.Update
			req.OldObject = row.old
		}
		err := serviceExternalIPs.Validate(t.Context(), req)
		if row.refused == "" {
			if err != nil {
				t.Errorf("%s: %v", row.what, err)
			}
			continue
		}
		admissiontest.WantForbidden(t, row.what, err, row.refused)
	}
}
