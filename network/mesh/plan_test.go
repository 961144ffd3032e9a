// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func machineOf(name, addrs, pods string) Machine {
	m := Machine{Name: name, VTEP: VTEP("net", name)}
	for a := range strings.FieldsSeq(addrs) {
		m.Addrs = append(m.Addrs, netip.MustParseAddr(a))
	}
	for p := range strings.FieldsSeq(pods) {
		m.Pods = append(m.Pods, netip.MustParsePrefix(p))
	}
	return m
}

// text is a plan in a few words.
func text(p Plan) string {
	var out []string
	for _, r := range p.Routes {
		way := "tunnel"
		if r.Link != 0 {
			way = fmt.Sprint("link ", r.Link)
		}
		out = append(out, fmt.Sprintf("%s via %s %s src %s", r.Dst, r.Via, way, r.Src))
	}
	for _, q := range p.Peers {
		out = append(out, fmt.Sprintf("peer %s at %s", q.Inner, q.At))
	}
	out = append(out, fmt.Sprintf("mtu %d", p.PodMTU))
	return strings.Join(append(out, p.Unreached...), "\n")
}

func TestPlan(t *testing.T) {
	self := machineOf("self", "10.1.0.1 fd01::1", "10.42.0.0/24 fd42::/64")
	links := []Link{
		{Name: "eth0", Index: 2, MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd01::1/64")}},
		{Name: "eth1", Index: 3, MTU: 9000, Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}},
	}
	near, far := machineOf("near", "10.1.0.2 fd01::2", "10.42.1.0/24 fd42:0:0:1::/64"), machineOf("far", "10.2.0.2", "10.42.2.0/24")
	dumb := machineOf("dumb", "10.3.0.2", "10.42.3.0/24")
	dumb.VTEP = nil
	for _, tc := range []struct {
		name   string
		mode   Mode
		others []Machine
		want   string
	}{
		{"alone", Auto, []Machine{self}, "mtu 1500"},
		{"neighbour", Auto, []Machine{near}, "10.42.1.0/24 via 10.1.0.2 link 2 src 10.42.0.1\nfd42:0:0:1::/64 via fd01::2 link 2 src fd42::1\nmtu 1500"},
		{"far", Auto, []Machine{far}, "10.42.2.0/24 via 10.42.2.1 tunnel src 10.42.0.1\npeer [10.42.2.1] at 10.2.0.2\nmtu 1450"},
		{"far, no tunnels", None, []Machine{far}, "mtu 1500\nfar: it is no neighbour on any link, and there are no tunnels"},
		{"tunnel for all", Tunnel, []Machine{near}, "10.42.1.0/24 via 10.42.1.1 tunnel src 10.42.0.1\nfd42:0:0:1::/64 via fd42:0:0:1::1 tunnel src fd42::1\npeer [10.42.1.1 fd42:0:0:1::1] at 10.1.0.2\nmtu 1450"},
		{"another link", Auto, []Machine{machineOf("side", "10.9.0.2", "10.42.4.0/24")}, "10.42.4.0/24 via 10.9.0.2 link 3 src 10.42.0.1\nmtu 1500"},
		{"no end of a tunnel", Auto, []Machine{dumb}, "mtu 1500\ndumb: it has no end of a tunnel"},
		{"this machine's own range", Auto, []Machine{machineOf("thief", "10.1.0.9", "10.42.0.0/16")}, "mtu 1500\nthief: its pod range 10.42.0.0/16 belongs to another node"},
		{"one range twice", Auto, []Machine{machineOf("b", "10.1.0.4", "10.42.7.0/24"), machineOf("a", "10.1.0.3", "10.42.7.0/24")}, "10.42.7.0/24 via 10.1.0.3 link 2 src 10.42.0.1\nmtu 1500\nb: its pod range 10.42.7.0/24 belongs to another node"},
		{"another node of this machine", Auto, []Machine{machineOf("twin", "10.1.0.1", "10.42.8.0/24")}, "mtu 1500"},
		{"no range yet", Auto, []Machine{machineOf("new", "10.1.0.5", "")}, "mtu 1500"},
		{"other family only", Auto, []Machine{machineOf("six", "fd09::2", "fd42:0:0:9::/64")}, "mtu 1500\nsix: it has no address of the family of 10.1.0.1"},
	} {
		p := New(tc.mode, self, links, tc.others)
		if got := text(p); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", tc.name, got, tc.want)
		}
		if again := New(tc.mode, self, links, tc.others); !reflect.DeepEqual(again, p) {
			t.Errorf("%s: the second plan is another", tc.name)
		}
	}
	p := New(Auto, self, links, []Machine{near, far})
	if got, want := fmt.Sprint(p.Cluster), "[10.42.0.0/24 fd42::/64 10.42.2.0/24 10.1.0.2/32 fd01::2/128 10.42.1.0/24 fd42:0:0:1::/64]"; got != want {
		t.Errorf("known by their own addresses: %s, want %s", got, want)
	}
}
