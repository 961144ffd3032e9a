// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestNodesServeTheirOwnAddresses: no Service takes an address and port away from an API server, from another node, or
// from a program of this node. 192.0.2.1 is the API server, 192.0.2.2 this node, 192.0.2.3 another one.
func TestNodesServeTheirOwnAddresses(t *testing.T) {
	at := netip.MustParseAddrPort
	node := Node{
		Name:     "node",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Addrs:    []netip.Addr{netip.MustParseAddr("192.0.2.2")},
		Others:   map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true, netip.MustParseAddr("192.0.2.3"): true},
		Servers:  map[netip.AddrPort]bool{at("192.0.2.1:6443"): true, at("203.0.113.9:6443"): true},
		Reserved: map[HostPort]string{{protoTCP, 10250}: "the kubelet", {protoTCP, 30250}: "the kubelet"},
		Taken: func(a netip.Addr, _ uint8, port uint16) bool {
			return port == 22 && a.String() == "192.0.2.2" || port == 31022 && a.IsUnspecified()
		},
	}
	balanced := func(mode corev1.LoadBalancerIPMode, port int32, ips ...string) Input {
		return service("s", "10.96.0.1", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.Ports[0].Port = port
			for _, ip := range ips {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
					IP:     ip,
					IPMode: new(mode),
				})
			}
		}, "10.244.1.2")
	}
	external := func(port int32, ips ...string) Input {
		return service("s", "10.96.0.1", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.ExternalIPs = ips
			s.Spec.Ports[0].Port = port
		}, "10.244.1.2")
	}
	nodePort := func(port int32) Input {
		return service("s", "10.96.0.1", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.Ports[0].NodePort = port
		}, "10.244.1.2")
	}
	const proxied, vip = corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP
	for _, row := range []struct {
		what    string
		in      Input
		gate    bool
		serves  string
		refuses string
	}{
		{
			"nodes of a load balancer", balanced(proxied, 80, "192.0.2.1", "192.0.2.2", "192.0.2.3"), false,
			"192.0.2.2:80", "",
		},
		{"the API server's address", balanced(proxied, 6443, "192.0.2.1", "192.0.2.2"), false, "192.0.2.2:6443", ""},
		{
			"the API server's address, as before ipMode", balanced(vip, 6443, "192.0.2.1"), false, "",
			"192.0.2.1:6443 the API server",
		},
		{
			"an address in front of API servers", balanced(vip, 6443, "203.0.113.9"), false, "",
			"203.0.113.9:6443 the API server",
		},
		{"an address of no node", balanced(vip, 6443, "203.0.113.7"), false, "203.0.113.7:6443", ""},
		{"the kubelet", balanced(proxied, 10250, "192.0.2.2"), false, "", "192.0.2.2:10250 the kubelet"},
		{"a program", balanced(proxied, 22, "192.0.2.2"), false, "", "192.0.2.2:22 a process of this node"},
		{"external IPs are off", external(80, "203.0.113.7"), false, "", ""},
		{
			"external IPs", external(80, "203.0.113.7", "192.0.2.2", "192.0.2.3"), true, "203.0.113.7:80 192.0.2.2:80",
			"",
		},
		{"another node's program", external(22, "192.0.2.3"), true, "", ""},
		{"another tenant's pod", external(80, "10.244.1.77"), true, "", "10.244.1.77:80 the range of pods"},
		{"a node port", nodePort(30080), false, "", ""},
		{"the kubelet at a node port", nodePort(30250), false, "", "0.0.0.0:30250 the kubelet"},
		{"a process at a node port, perhaps for a moment", nodePort(31022), false, "", ""},
	} {
		n := node
		n.ExternalIPs = row.gate
		table, state, _ := Table("t", n, named(row.in))
		var serves, refuses []string
		for _, part := range state.parts {
			for _, p := range part.Ports {
				for _, f := range p.Fronts[1:] {
					serves = append(serves, f.String())
				}
			}
			for _, r := range part.Refused {
				refuses = append(refuses, fmt.Sprint(r.Addr, " ", r.By))
			}
		}
		if got := strings.Join(serves, " "); got != row.serves {
			t.Errorf("%s: serves %q, want %q", row.what, got, row.serves)
		}
		if got := strings.Join(refuses, ", "); got != row.refuses {
			t.Errorf("%s: refuses %q, want %q", row.what, got, row.refuses)
		}
		if have := len(table.Elements["external4"]) + len(table.Elements["closed4"]); have != len(serves) {
			t.Errorf("%s: %d elements for external addresses, want %d", row.what, have, len(serves))
		}
		served := row.in.Service.Spec.Ports[0].NodePort != 0 && row.refuses == ""
		if got := len(table.Elements["nodeports4"]) > 0; got != served {
			t.Errorf("%s: a node port is served: %v, want %v", row.what, got, served)
		}
	}
}

// TestServicesThatMultiply: a Service whose ports, endpoints, addresses and source ranges multiply to too many elements
// has none.
func TestServicesThatMultiply(t *testing.T) {
	for what, change := range map[string]func(s *corev1.Service, e *discoveryv1.EndpointSlice){
		"ports and endpoints": func(s *corev1.Service, e *discoveryv1.EndpointSlice) {
			e.Endpoints = slices.Repeat(e.Endpoints, 1000)
			s.Spec.Ports = slices.Repeat(s.Spec.Ports, 300)
		},
		"ports, addresses and ranges": func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.Ports = slices.Repeat(s.Spec.Ports, 1000)
			s.Spec.LoadBalancerSourceRanges = slices.Repeat([]string{"192.0.2.0/24"}, 40000)
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		},
		"ports and external IPs": func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.Ports = slices.Repeat(s.Spec.Ports, 3000)
			for i := range 3000 {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("203.0.%d.%d", i>>8, i&255))
			}
		},
		"ports of slices": func(s *corev1.Service, e *discoveryv1.EndpointSlice) {
			s.Spec.Ports = slices.Repeat(s.Spec.Ports, 20000)
			e.Ports = slices.Repeat(e.Ports, 20000)
		},
	} {
		_, state, _ := Table("t", testNode, named(service("s", "10.96.0.1", "TCP", change, "10.244.1.2")))
		for _, p := range state.parts {
			if p.TooLarge <= MostElements || len(p.Elements) != 1 || len(p.Chains) > 0 { // its cluster IP is rejected
				t.Errorf("%s: %d elements of %d", what, len(p.Elements), p.TooLarge)
			}
		}
	}
}

// TestSourceRanges: ranges that another one contains are left out. They were compared with each other, which took half
// a minute for the 40,000 of a large Service.
func TestSourceRanges(t *testing.T) {
	got := sourceRanges(
		[]string{
			"192.0.2.7/32", " 192.0.2.0/24", "192.0.2.0/24", "198.51.100.0/25", "198.51.100.0/26", "2001:db8::/32",
			"x", "192.0.3.0/24",
		}, 4)
	var want []netip.Prefix
	for _, p := range []string{"192.0.2.0/24", "192.0.3.0/24", "198.51.100.0/25"} {
		want = append(want, netip.MustParsePrefix(p))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s", cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)))
	}
	if got := sourceRanges([]string{"192.0.2.0/24", "0.0.0.0/0"}, 4); got != nil {
		t.Errorf("with everything: %v", got)
	}
}
