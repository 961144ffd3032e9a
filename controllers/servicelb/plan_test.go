// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	addr := netip.MustParseAddr
	svc := func(name string, age int, ports ...int32) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace:         "default",
			Name:              name,
			CreationTimestamp: metav1.NewTime(time.Unix(int64(-age), 0)),
		}}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		for _, p := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: p})
		}
		return s
	}
	nodes := []node{
		{"n2", []netip.Addr{addr("192.0.2.2"), addr("2001:db8::2")}, nil},
		{
			"n1", []netip.Addr{addr("192.0.2.1")}, map[port]string{
				{corev1.ProtocolTCP, 443}:   "a host port of pod default/ingress",
				{corev1.ProtocolTCP, 10250}: "its kubelet's",
			},
		},
	}
	local := svc("local", 9, 8000)
	local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	nowhere := svc("nowhere", 9, 8001)
	nowhere.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	other := svc("other", 20, 80)
	other.Spec.LoadBalancerClass = new("example.com/cloud")
	dual := svc("dual", 8, 81)
	dual.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	udp := svc("udp", 1, 80)
	udp.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	in := []*corev1.Service{svc("young", 1, 80), svc("old", 10, 80), local, nowhere, other, svc("host-port", 5,
		443), dual, udp, svc("api", 30, 80, 6443), svc("kubelet", 30, 10250)}
	got := plan(in, nodes, map[port]bool{{corev1.ProtocolTCP, 6443}: true}, func(s *corev1.Service) map[string]bool {
		return map[string]bool{"n1": s.Name == "local"}
	})
	want := map[string]string{
		"old":       "192.0.2.1 192.0.2.2",
		"young":     "port 80/TCP of the nodes belongs to the older Service default/old",
		"local":     "192.0.2.1",
		"nowhere":   "no node is ready to serve it",
		"host-port": "192.0.2.2",
		"dual":      "192.0.2.1 192.0.2.2 2001:db8::2",
		"udp":       "192.0.2.1 192.0.2.2",
		"api":       "port 6443/TCP is the API server's: give the Service another one",
		"kubelet":   "192.0.2.2",
	}
	for service, o := range got {
		text := o.reason
		if text == "" {
			var ips []string
			for _, i := range o.ingress {
				ips = append(ips, i.IP)
				if *i.IPMode != corev1.LoadBalancerIPModeProxy { // other nodes would take connections to this one
					t.Errorf("%s: mode %s of %s", service.Name, *i.IPMode, i.IP)
				}
			}
			text = strings.Join(ips, " ")
		}
		if text != want[service.Name] {
			t.Errorf("%s: %q, want %q", service.Name, text, want[service.Name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d outcomes, want %d", len(got), len(want))
	}
}

// TestFalseAddresses: no addresses that a node writes make the status of load balancers invalid or long.
func TestFalseAddresses(t *testing.T) {
	n := &corev1.Node{}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, a := range []string{
		"192.0.2.1", "192.0.2.1", "127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "fe80::1%eth0", "fd00::1%eth0",
		"::ffff:192.0.2.9", "a-name", "2001:db8::1",
	} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	if got, want := fmt.Sprint(loadBalancerAddresses(n)), "[192.0.2.1 2001:db8::1]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i := range 200 {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{
			Type:    corev1.NodeInternalIP,
			Address: fmt.Sprint("198.51.100.", i),
		})
	}
	if got := len(loadBalancerAddresses(n)); got != maxAddresses {
		t.Errorf("%d addresses, want %d", got, maxAddresses)
	}
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	same := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	if got := chooseNodes(svc, []node{{"a", same, nil}, {"b", same, nil}}, nil); len(got.ingress) != 1 {
		t.Errorf("an address of two nodes: %v", got.ingress)
	}
}
