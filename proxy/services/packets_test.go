// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestOtherClusters: pods of another cluster on the machine, whose cluster IPs may be the same, pass by ours, and reach
// node ports.
func TestOtherClusters(t *testing.T) {
	world := newWorld(t)
	world.serve("b", "tcp", 8080)
	world.sysctl("client", "ipv4/ip_forward=0") // what has no way is not sent back
	world.node.PodGroup = 0x12345678
	// 0x12345678, 0x22000001
	world.ip("node", "link set dev a group 305419896", "link set dev b group 305419896",
		"link set dev r group 570425345")
	world.write(service("s", "10.96.0.1", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
	}, "10.244.1.3"))
	for _, c := range []struct{ from, to, want string }{
		{"a", "10.96.0.1:80", "b 10.244.1.2"},
		{"a", "10.96.0.1:81", "refused"},
		{"client", "10.96.0.1:80", "b 10.244.1.1"},
		{"node", "10.96.0.1:80", "b 10.244.1.1"},
		{"r", "10.96.0.1:80", "timeout"},
		{"r", "10.96.0.1:81", "timeout"},
		{"r", "192.0.2.1:30080", "b 10.244.1.1"},
	} {
		world.want(t, c.from, "tcp", c.to, c.want)
	}
}

// TestPackets sends real packets through the rules.
func TestPackets(t *testing.T) {
	world := newWorld(t)
	for _, s := range []string{"a", "b", "r"} {
		world.serve(s, "tcp", 8080)
		world.serve(s, "udp4", 8080)
	}
	world.serve("node", "tcp", 8081)
	type try struct{ from, network, to, want string }
	const a4, b4, r4 = "10.244.1.2", "10.244.1.3", "10.244.2.2"
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	nodePort := func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
	}
	balancer := func(s *corev1.Service, ip string) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
	}
	for _, c := range []struct {
		name  string
		in    []Input
		tries []try
	}{
		{"cluster IP", []Input{service("s", "10.96.0.1", "TCP", nil, b4)}, []try{
			{"a", "tcp", "10.96.0.1:80", "b 10.244.1.2"},
			{"r", "tcp", "10.96.0.1:80", "b 10.244.1.1"}, // not of this node's range
			{"node", "tcp", "10.96.0.1:80", "b 10.244.1.1"},
			{"client", "tcp", "10.96.0.1:80", "b 10.244.1.1"},
			{"a", "tcp", "10.96.0.1:81", "refused"},
			{"node", "tcp", "10.96.0.1:81", "refused"},
		}},
		{
			"hairpin",
			[]Input{service("s", "10.96.0.1", "TCP", nil, a4)},
			[]try{{"a", "tcp", "10.96.0.1:80", "a 10.244.1.1"}},
		},
		{
			"UDP",
			[]Input{service("s", "10.96.0.2", "UDP", nil, b4)},
			[]try{{"a", "udp4", "10.96.0.2:80", "b 10.244.1.2"}, {"node", "udp4", "10.96.0.2:80", "b 10.244.1.1"}},
		},
		{"no endpoints", []Input{
			service("s", "10.96.0.3", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { nodePort(s) }),
			service("u", "10.96.0.4", "UDP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				s.Spec.ExternalIPs = []string{"203.0.113.7"}
			}),
		}, []try{
			{"a", "tcp", "10.96.0.3:80", "refused"},
			{"node", "tcp", "10.96.0.3:80", "refused"},
			{"client", "tcp", "192.0.2.1:30080", "refused"},
			{"a", "udp4", "10.96.0.4:80", "refused"},
			{"client", "udp4", "203.0.113.7:80", "refused"},
		}},
		{
			"IPv6", []Input{service("s", "fd96::1", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				nodePort(s)
			}, "fd44:1::3")}, []try{
				{"a", "tcp", "[fd96::1]:80", "b fd44:1::2"},
				{"b", "tcp", "[fd96::1]:80", "b fd44:1::1"},
				{"client", "tcp", "[2001:db8::1]:30080", "b fd44:1::1"},
				{"a", "tcp", "[fd96::1]:81", "refused"},
			},
		},
		{
			"node port",
			[]Input{
				service("s", "10.96.0.5", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
					nodePort(s)
				}, b4),
			},
			[]try{
				{"client", "tcp", "192.0.2.1:30080", "b 10.244.1.1"},
				{"a", "tcp", "192.0.2.1:30080", "b 10.244.1.1"},
				{"node", "tcp", "192.0.2.1:30080", "b 10.244.1.1"},
				{"node", "tcp", "127.0.0.1:30080", "b 10.244.1.1"},
				{"client", "tcp", "192.0.2.1:30081", "refused"},
			},
		},
		{
			"node port, policy Local",
			[]Input{service("s", "10.96.0.5", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				nodePort(s)
				local(s)
			}, b4, r4)},
			[]try{
				{"client", "tcp", "192.0.2.1:30080", "b 192.0.2.9"},
			},
		},
		{
			"node port, policy Local, none here",
			[]Input{service("s", "10.96.0.5", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				nodePort(s)
				local(s)
			}, r4)},
			[]try{
				{"client", "tcp", "192.0.2.1:30080", "timeout"},
				{"a", "tcp", "192.0.2.1:30080", "r 10.244.1.2"},
				{"node", "tcp", "192.0.2.1:30080", "r 10.244.1.1"},
			},
		},
		{
			"external IP",
			[]Input{
				service("s", "10.96.0.6", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
					s.Spec.ExternalIPs = []string{"203.0.113.5"}
				}, b4),
			},
			[]try{
				{"client", "tcp", "203.0.113.5:80", "b 10.244.1.1"},
				{"a", "tcp", "203.0.113.5:80", "b 10.244.1.1"},
				{"node", "tcp", "203.0.113.5:80", "b 10.244.1.1"},
			},
		},
		{
			"load balancer with source ranges",
			[]Input{service("s", "10.96.0.7", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				balancer(s, "192.0.2.1")
				s.Spec.LoadBalancerSourceRanges = []string{"10.244.1.2/32", "10.244.1.0/31"}
			}, b4)},
			[]try{
				{"a", "tcp", "192.0.2.1:80", "b 10.244.1.1"},
				{"client", "tcp", "192.0.2.1:80", "timeout"},
				{"client", "tcp", "10.96.0.7:80", "b 10.244.1.1"},
			},
		},
		{
			"load balancer that is itself a proxy",
			[]Input{service("s", "10.96.0.7", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				balancer(s, "192.0.2.1")
				s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeProxy)
			}, b4)},
			[]try{{"a", "tcp", "192.0.2.1:80", "refused"}},
		},
		{
			"load balancer, policy Local",
			[]Input{service("s", "10.96.0.7", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				balancer(s, "192.0.2.1")
				local(s)
			}, b4)},
			[]try{
				{"client", "tcp", "192.0.2.1:80", "b 192.0.2.9"},
				{"a", "tcp", "192.0.2.1:80", "b 10.244.1.2"},
				{"node", "tcp", "192.0.2.1:80", "b 10.244.1.1"},
			},
		},
		{"internal policy Local", []Input{
			service("s", "10.96.0.8", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
			}, r4),
			service("t", "10.96.0.9", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
			}, r4, b4),
		}, []try{{"a", "tcp", "10.96.0.8:80", "timeout"}, {"a", "tcp", "10.96.0.9:80", "b 10.244.1.2"}}},
		{
			"host network",
			[]Input{
				service("s", "10.96.0.10", "TCP", func(_ *corev1.Service, e *discoveryv1.EndpointSlice) {
					e.Ports[0].Port = new(int32(8081))
				}, "192.0.2.1"),
			},
			[]try{
				{"a", "tcp", "10.96.0.10:80", "node 10.244.1.2"},
				{
					"node", "tcp", "10.96.0.10:80", "node 10.244.1.1",
				}, // masqueraded as in Kubernetes, which shows on lo too
			},
		},
		{"not ours", []Input{service("s", "10.96.0.11", "TCP", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Labels = map[string]string{LabelProxyName: "cilium"}
		}, b4)}, []try{{"client", "tcp", "10.96.0.11:80", "timeout"}}},
		{
			"terminating where no other is left",
			[]Input{service("s", "10.96.0.12", "TCP", func(_ *corev1.Service, e *discoveryv1.EndpointSlice) {
				e.Endpoints[0].Conditions = discoveryv1.EndpointConditions{
					Ready:       new(false),
					Serving:     new(true),
					Terminating: new(true),
				}
				e.Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}
			}, b4, r4)},
			[]try{{"a", "tcp", "10.96.0.12:80", "b 10.244.1.2"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			world.write(c.in...)
			for _, y := range c.tries {
				world.want(t, y.from, y.network, y.to, y.want)
			}
			if t.Failed() && testing.Verbose() {
				t.Log(world.rules())
			}
		})
	}
}

func TestSpreadAndAffinity(t *testing.T) {
	world := newWorld(t)
	for _, s := range []string{"a", "b", "r"} {
		world.serve(s, "tcp", 8080)
	}
	eps := []string{"10.244.1.2", "10.244.1.3", "10.244.2.2"}
	world.write(service("s", "10.96.0.1", "TCP", nil, eps...))
	got := world.askAll("client", "tcp", "10.96.0.1:80", 120)
	if got["a"] < 15 || got["b"] < 15 || got["r"] < 15 || got["a"]+got["b"]+got["r"] != 120 {
		t.Errorf("spread over three endpoints: %v", got)
	}
	stick := func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600))},
		}
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
	}
	world.write(service("s", "10.96.0.1", "TCP", stick, eps...))
	got = world.askAll("client", "tcp", "10.96.0.1:80", 20)
	for k, v := range world.askAll("client", "tcp", "192.0.2.1:30080", 20) { // all frontends of a port share it
		got[k] += v
	}
	if len(got) != 1 {
		t.Errorf("one client with affinity reached %v", got)
	}
	var its string
	for its = range got {
	}
	// Its endpoint goes: it gets another, and keeps that one.
	var left []string
	for i, name := range []string{"a", "b", "r"} {
		if name != its {
			left = append(left, eps[i])
		}
	}
	world.write(service("s", "10.96.0.1", "TCP", stick, left...))
	got = world.askAll("client", "tcp", "10.96.0.1:80", 20)
	if len(got) != 1 || got[its] > 0 {
		t.Errorf("after endpoint %s went, the client reached %v", its, got)
	}
	// The others do not disturb: it stays where it is when one comes.
	world.write(service("s", "10.96.0.1", "TCP", stick, eps...))
	for k, v := range world.askAll("client", "tcp", "10.96.0.1:80", 20) {
		got[k] += v
	}
	if len(got) != 1 {
		t.Errorf("after an endpoint came, the client reached %v", got)
	}
}

func TestChoice(t *testing.T) {
	node := Node{Name: "node", Zone: "z1"}
	ep := func(addr string, ready bool, node string, zones, nodes []string) candidate {
		return candidate{
			Endpoint: Endpoint{Addr: netip.MustParseAddrPort(addr), Local: node == "node"},
			ready:    ready,
			serving:  ready,
			zones:    zones,
			nodes:    nodes,
		}
	}
	z1 := []string{"z1"}
	z2 := []string{"z2"}
	n1 := []string{"node"}
	n2 := []string{"other"}
	for _, c := range []struct {
		name       string
		in         []candidate
		all, local string
	}{
		{"none", nil, "", ""},
		{
			"plain",
			[]candidate{ep("1.1.1.1:1", true, "node", nil, nil), ep("1.1.1.2:1", true, "other", nil, nil)},
			"1.1.1.1 1.1.1.2", "1.1.1.1",
		},
		{
			"zones",
			[]candidate{ep("1.1.1.1:1", true, "node", z2, nil), ep("1.1.1.2:1", true, "other", z1, nil)},
			"1.1.1.2", "1.1.1.1",
		},
		{
			"a zone without an endpoint", []candidate{ep("1.1.1.1:1", true, "node", z2, nil), ep("1.1.1.2:1", true,
				"other", z2, nil)}, "1.1.1.1 1.1.1.2", "1.1.1.1",
		},
		{
			"one without a hint", []candidate{ep("1.1.1.1:1", true, "node", z1, nil), ep("1.1.1.2:1", true, "other",
				nil, nil)}, "1.1.1.1 1.1.1.2", "1.1.1.1",
		},
		{
			"nodes before zones", []candidate{
				ep("1.1.1.1:1", true, "node", z1, n1), ep("1.1.1.2:1", true, "other", z1, n2),
			}, "1.1.1.1", "1.1.1.1",
		},
		{
			"no endpoint on the node", []candidate{
				ep("1.1.1.1:1", true, "other", z2, n2), ep("1.1.1.2:1", true, "other", z1, n2),
			}, "1.1.1.2", "",
		},
		{
			"not ready does not count", []candidate{
				ep("1.1.1.1:1", false, "node", nil, nil), ep("1.1.1.2:1", true, "other", z1, nil),
			}, "1.1.1.2", "",
		},
	} {
		got := choose(c.in, node)
		text := func(eps []Endpoint) string {
			var out []string
			for _, e := range eps {
				out = append(out, e.Addr.Addr().String())
			}
			return strings.Join(out, " ")
		}
		if text(got.all) != c.all || text(got.local) != c.local {
			t.Errorf("%s: all %q, local %q; want %q, %q", c.name, text(got.all), text(got.local), c.all, c.local)
		}
	}
}

func TestArrangeKeepsNumbers(t *testing.T) {
	list := func(s string) []Endpoint {
		var out []Endpoint
		for _, b := range s {
			out = append(out, Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(b)}), 80)})
		}
		return out
	}
	show := func(eps []Endpoint) string {
		var b strings.Builder
		for _, e := range eps {
			a := e.Addr.Addr().As4()
			b.WriteByte(a[3])
		}
		return b.String()
	}
	for _, c := range [][3]string{
		{"", "abc", "abc"},
		{"abc", "abc", "abc"},
		{"abc", "ac", "ac"},
		{"abcd", "bcd", "dbc"},
		{"abc", "abxc", "abcx"},
		{"abc", "xbc", "xbc"},
		{"abc", "", ""},
		{"cab", "abcd", "cabd"},
	} {
		if got := show(arrange(list(c[0]), list(c[1]))); got != c[2] {
			t.Errorf("%s -> %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
