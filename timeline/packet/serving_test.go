// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"keelson/api/networking/reach"
)

func TestServe(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	for name, change := range map[string]func(*Node){
		"well":     func(*Node) {},
		"no-rules": func(n *Node) { n.Rules = &reach.Rules{} },
		"unknown": func(n *Node) {
			n.Rules = nil
			n.NoRules = "the service proxy is none of this kubelet's process"
		},
		"stale": func(n *Node) {
			n.Rules.Ports[0].Endpoints = append(n.Rules.Ports[0].Endpoints, netip.MustParseAddrPort("10.42.0.9:8080"))
		},
		"failing": func(n *Node) { n.Rules.Failing = at },
		"refused": func(n *Node) { n.Rules.Refused = []string{"192.0.2.1:80: a process of this node has it"} },
		"no-dns": func(n *Node) {
			n.DNS.Error = "i/o timeout"
			n.DNS.Addresses = nil
		},
		"nxdomain": func(n *Node) {
			n.DNS.Code = "NXDOMAIN"
			n.DNS.Addresses = nil
		},
		"nxdomain-neighbour": func(n *Node) {
			n.DNS.Code = "NXDOMAIN"
			n.DNS.Addresses = nil
			n.DNS.Shared = true
		},
		"no-dns-neighbour": func(n *Node) {
			n.DNS.Error = "i/o timeout"
			n.DNS.Addresses = nil
			n.DNS.Shared = true
		},
		"address-of-neighbour": func(n *Node) {
			n.DNS.Addresses = []netip.Addr{netip.MustParseAddr("10.96.99.9")}
			n.DNS.Shared = true
		},
		"neighbour-without-harm": func(n *Node) { n.DNS.Shared = true },
		"silent":                 func(n *Node) { *n = Node{Serving: reach.Serving{Node: "n1"}, Error: "context deadline exceeded"} },
		"empty": func(n *Node) {
			n.Rules.Ports[0].Endpoints = nil
			n.Rules.Ports[0].Count = 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := web()
			objects.Slices[0].Endpoints[0].Addresses = []string{"10.42.0.5"}
			objects.Slices[0].Endpoints[1].Addresses = []string{"10.42.0.6"}
			node := Node{Serving: reach.Serving{
				Node: "n1",
				Rules: &reach.Rules{
					Since: at,
					Ports: []reach.Port{{
						Name:     "http",
						Protocol: "TCP",
						Fronts:   []netip.AddrPort{netip.MustParseAddrPort("10.96.12.3:80")},
						NodePort: 30080,
						Count:    7,
						Endpoints: []netip.AddrPort{
							netip.MustParseAddrPort("10.42.0.5:8080"), netip.MustParseAddrPort("10.42.0.6:8080"),
						},
					}},
				},
				DNS: &reach.Try{
					Name:      "web.default.svc.cluster.local",
					Server:    "10.96.0.10",
					Code:      "NOERROR",
					Addresses: []netip.Addr{netip.MustParseAddr("10.96.12.3")},
					Took:      time.Millisecond,
				},
			}}
			change(&node)
			s := Explain(objects)
			s.Serve(objects, []Node{node}, at.Add(90*time.Second))
			var b bytes.Buffer
			Render(&b, s, false)
			golden(t, "serve-"+name, b.Bytes())
		})
	}
}
