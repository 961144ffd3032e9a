// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/networking/reach"
)

// TestTraceOfNodePorts: a connection to a node's address goes by that node's rules.
func TestTraceOfNodePorts(t *testing.T) {
	for _, c := range []struct {
		name, node string
		local      bool
		endpoints  []string // nodes that have one
		expected   Expected
		rules      string
		hops       string
	}{
		{"own node", "n1", false, []string{"n1", "n2"}, Passes, "port 30080 (http) leads to 2 endpoints", "n1 n2"},
		{
			"another node", "n2", false,
			[]string{"n1", "n2"},
			Passes,
			"port 30080 (http) leads to 2 endpoints, by the rules of node n2", "n1 n2",
		},
		{
			"local", "n2", true,
			[]string{"n1", "n2"},
			Passes,
			"port 30080 (http) leads to 2 endpoints, by the rules of node n2; externalTrafficPolicy is Local, and 1 " +
				"endpoint of them there", "n2",
		},
		// what comes from pods may use all
		{"local, own node", "n1", true, []string{"n2"}, Passes, "port 30080 (http) leads to 1 endpoint", "n2"},
		{
			"local, none there", "n2", true,
			[]string{"n1"},
			Drops,
			"dropped: node n2 has no endpoint, and externalTrafficPolicy is Local", "",
		},
		{
			"none at all", "n2", false, nil, Refuses,
			"refused: port 30080 (http) has no endpoint (keelson why -n default svc/web says why)", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			traceInput := journey()
			traceInput.Address = netip.MustParseAddr(map[string]string{"n1": "192.0.2.1", "n2": "192.0.2.2"}[c.node])
			traceInput.Port = 30080
			traceInput.ToNode = c.node
			traceInput.Answer = nil
			traceInput.Service.Spec.Type = corev1.ServiceTypeNodePort
			traceInput.Service.Spec.Ports[0].NodePort = 30080
			traceInput.Service.Spec.Ports[0].Protocol = corev1.ProtocolTCP
			if c.local {
				traceInput.Service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
			slice := traceInput.Slices[0]
			have := slice.Endpoints
			slice.Endpoints = nil
			for _, e := range have {
				if strings.Contains(fmt.Sprint(c.endpoints), *e.NodeName) {
					slice.Endpoints = append(slice.Endpoints, e)
				}
			}
			remote := netip.AddrPortFrom(traceInput.Address, traceInput.Port)
			traceInput.Answer = &reach.Answer{
				Connection: &reach.Connection{Outcome: reach.Connected, Remote: remote, Endpoint: remote},
			}
			// The own node's kernel chooses an endpoint, another node's does not show here.
			if got, want := Follow(traceInput).Verdict, c.node == "n2"; c.expected == Passes &&
				strings.HasPrefix(got, "confirmed") != want {
				t.Errorf("sent to the node port itself: got %q, want it confirmed: %t", got, want)
			}
			traceInput.Answer = nil
			got := Follow(traceInput)
			var hops []string
			for _, h := range got.Hops {
				hops = append(hops, h.Node)
			}
			if got.Expected != c.expected || got.Front != "node port" || got.Rules != c.rules ||
				strings.Join(hops, " ") != c.hops {
				t.Errorf("%s, front %q, hops %v, rules:\n%s\nwant %s, hops %s, rules:\n%s", got.Expected, got.Front,
					hops, got.Rules, c.expected, c.hops, c.rules)
			}
		})
	}
}

// TestNamesOfHostNetwork: a trace from a host-network pod names the DNS servers that it asks.
func TestNamesOfHostNetwork(t *testing.T) {
	j := journey()
	j.Address = netip.Addr{}
	j.Answer = &reach.Answer{Names: &reach.Names{Tries: []reach.Try{{Name: "web", Code: "NXDOMAIN"}}}}
	j.From.Spec.HostNetwork = true
	j.From.Spec.DNSPolicy = corev1.DNSClusterFirst
	if got := Follow(j).Verdict; !strings.Contains(got, "unless its dnsPolicy is ClusterFirstWithHostNet") {
		t.Errorf("got %q", got)
	}
	j.From.Spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet
	if got := Follow(j).Verdict; strings.Contains(got, "dnsPolicy") {
		t.Errorf("with the cluster's servers: got %q", got)
	}
}
