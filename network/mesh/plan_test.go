// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
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
func text(plan Plan) string {
	var out []string
	for _, r := range plan.Routes {
		way := "tunnel"
		if r.Link != 0 {
			way = fmt.Sprint("link ", r.Link)
		}
		out = append(out, fmt.Sprintf("%s via %s %s src %s", r.Dst, r.Via, way, r.Src))
	}
	for _, q := range plan.Peers {
		out = append(out, fmt.Sprintf("peer %s at %s", q.Inner, q.At))
	}
	out = append(out, fmt.Sprintf("mtu %d", plan.PodMTU))
	return strings.Join(append(out, plan.Unreached...), "\n")
}

func TestPlan(t *testing.T) {
	self := machineOf("self", "10.1.0.1 fd01::1", "10.42.0.0/24 fd42::/64")
	links := []Link{
		{
			Name:  "eth0",
			Index: 2,
			MTU:   1500,
			Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd01::1/64")},
		},
		{
			Name:  "eth1",
			Index: 3,
			MTU:   9000,
			Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")},
		},
	}
	near := machineOf("near", "10.1.0.2 fd01::2", "10.42.1.0/24 fd42:0:0:1::/64")
	far := machineOf("far", "10.2.0.2", "10.42.2.0/24")
	dumb := machineOf("dumb", "10.3.0.2", "10.42.3.0/24")
	dumb.VTEP = nil
	for _, tc := range []struct {
		name   string
		mode   Mode
		others []Machine
		want   string
	}{
		{"alone", Auto, []Machine{self}, "mtu 1500"},
		{
			"neighbour", Auto, []Machine{near}, "10.42.1.0/24 via 10.1.0.2 link 2 src 10.42.0.1\nfd42:0:0:1::/64 via " +
				"fd01::2 link 2 src fd42::1\nmtu 1500",
		},
		{
			"far", Auto,
			[]Machine{far},
			"10.42.2.0/24 via 10.42.2.1 tunnel src 10.42.0.1\npeer [10.42.2.1] at 10.2.0.2\nmtu 1450",
		},
		{
			"far, no tunnels", None,
			[]Machine{far},
			"mtu 1500\nfar: it is no neighbour on any link, and there are no tunnels",
		},
		{
			"tunnel for all", Tunnel, []Machine{near}, "10.42.1.0/24 via 10.42.1.1 tunnel src " +
				"10.42.0.1\nfd42:0:0:1::/64 via fd42:0:0:1::1 tunnel src fd42::1\npeer [10.42.1.1 fd42:0:0:1::1] at " +
				"10.1.0.2\nmtu 1450",
		},
		{
			"another link", Auto,
			[]Machine{machineOf("side", "10.9.0.2", "10.42.4.0/24")},
			"10.42.4.0/24 via 10.9.0.2 link 3 src 10.42.0.1\nmtu 1500",
		},
		{"no end of a tunnel", Auto, []Machine{dumb}, "mtu 1500\ndumb: it has no end of a tunnel"},
		{
			"this machine's own range", Auto,
			[]Machine{machineOf("thief", "10.1.0.9", "10.42.0.0/16")},
			"mtu 1500\nthief: its pod range 10.42.0.0/16 belongs to another node",
		},
		{
			"one range twice", Auto,
			[]Machine{machineOf("b", "10.1.0.4", "10.42.7.0/24"), machineOf("a", "10.1.0.3", "10.42.7.0/24")},
			"10.42.7.0/24 via 10.1.0.3 link 2 src 10.42.0.1\nmtu 1500\nb: its pod range 10.42.7.0/24 belongs to " +
				"another node",
		},
		{
			"one range twice, the older one comes last by name", Auto,
			[]Machine{
				aged(machineOf("b", "10.1.0.4", "10.42.7.0/24"), 1),
				aged(machineOf("a", "10.1.0.3", "10.42.7.0/24"), 2),
			},
			"10.42.7.0/24 via 10.1.0.4 link 2 src 10.42.0.1\nmtu 1500\na: its pod range 10.42.7.0/24 belongs to " +
				"another node",
		},
		{"another node of this machine", Auto, []Machine{machineOf("twin", "10.1.0.1", "10.42.8.0/24")}, "mtu 1500"},
		{"no range yet", Auto, []Machine{machineOf("new", "10.1.0.5", "")}, "mtu 1500"},
		{
			"one that wants WireGuard", Auto,
			[]Machine{keyed(near, 1)},
			"mtu 1500\nnear: it wants WireGuard, and this node runs with --tunnel=auto",
		},
		{
			"the machine's address as a pod's", Auto,
			[]Machine{machineOf("wide", "10.8.0.2", "10.1.0.0/16")},
			"mtu 1500\nwide: its pod range 10.1.0.0/16 has this machine's address 10.1.0.1",
		},
		{
			"another machine's address as a pod's", Auto,
			[]Machine{machineOf("wide", "10.1.0.8", "10.2.0.0/16"), far},
			"10.42.2.0/24 via 10.42.2.1 tunnel src 10.42.0.1\npeer [10.42.2.1] at 10.2.0.2\nmtu 1450\nwide: its pod " +
				"range 10.2.0.0/16 has the address 10.2.0.2 of node far",
		},
		{
			"other family only", Auto,
			[]Machine{machineOf("six", "fd09::2", "fd42:0:0:9::/64")},
			"mtu 1500\nsix: it has no address of the family of 10.1.0.1",
		},
	} {
		p := New(tc.mode, self, links, tc.others, nil)
		if got := text(p); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", tc.name, got, tc.want)
		}
		if again := New(tc.mode, self, links, tc.others, nil); !reflect.DeepEqual(again, p) {
			t.Errorf("%s: the second plan is another", tc.name)
		}
	}
	p := New(Auto, self, links, []Machine{near, far}, nil)
	if got, want := fmt.Sprint(p.Cluster), "[10.42.0.0/24 fd42::/64 10.42.2.0/24 10.1.0.2/32 fd01::2/128 "+
		"10.42.1.0/24 fd42:0:0:1::/64]"; got != want {
		t.Errorf("known by their own addresses: %s, want %s", got, want)
	}
}

// aged says when a machine came.
func aged(m Machine, second int64) Machine {
	m.Since = time.Unix(second, 0)
	return m
}

// keyed gives a machine a key that derives from n.
func keyed(m Machine, n byte) Machine {
	m.Key = Key{n}
	m.Port = 51820
	return m
}

// TestEncryptedPlan: every other machine's range is closed but for the tunnel, also where there is none.
func TestEncryptedPlan(t *testing.T) {
	self := keyed(machineOf("self", "10.1.0.1", "10.42.0.0/24"), 1)
	links := []Link{{
		Name:  "eth0",
		Index: 2,
		MTU:   1500,
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24")},
	}}
	near := machineOf("near", "10.1.0.2", "10.42.1.0/24 fd42:0:0:1::/64")
	cluster := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}
	through := "10.42.1.0/24 via invalid IP tunnel src 10.42.0.1\npeer [10.42.1.1] at 10.1.0.2\nmtu 1440"
	for _, tc := range []struct {
		name   string
		others []Machine
		want   string
		closed string
	}{
		{"a neighbour takes the tunnel", []Machine{keyed(near, 2)}, through, "[10.42.0.0/16 10.42.1.0/24]"},
		{
			"no key", []Machine{near}, "mtu 1440\nnear: it has no WireGuard key, and without nothing is sent: it " +
				"needs --tunnel=wireguard", "[10.42.0.0/16 10.42.1.0/24]",
		},
		{
			"this node's key", []Machine{keyed(near, 1)}, "mtu 1440\nnear: its WireGuard key is another node's too: " +
				"one of them is a copy and needs its own", "[10.42.0.0/16 10.42.1.0/24]",
		},
		{
			"one key twice",
			[]Machine{keyed(near, 2), keyed(machineOf("z", "10.1.0.3", "10.42.3.0/24"), 2)},
			through + "\nz: its WireGuard key is another node's too: one of them is a copy and needs its own",
			"[10.42.0.0/16 10.42.1.0/24 10.42.3.0/24]",
		},
		{
			"a range twice",
			[]Machine{keyed(machineOf("a", "10.1.0.3", "10.42.0.0/24"), 2)},
			"mtu 1440\na: its pod range 10.42.0.0/24 belongs to another node", "[10.42.0.0/16]",
		},
	} {
		p := New(WireGuard, self, links, tc.others, cluster)
		if got := text(p); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", tc.name, got, tc.want)
		}
		if got := fmt.Sprint(p.Blocked); got != tc.closed {
			t.Errorf("%s: closed are %s, want %s", tc.name, got, tc.closed)
		}
		if got := fmt.Sprint(p.Sealed); got != strings.Replace(tc.closed, "[", "[10.42.0.0/24 ", 1) {
			t.Errorf("%s: sealed are %s, want this machine's and %s", tc.name, got, tc.closed)
		}
		if got := fmt.Sprint(p.Inner); got != "[10.42.0.1]" {
			t.Errorf("%s: this machine is %s in the tunnel", tc.name, got)
		}
	}
	lan := []Link{{
		Name:  "eth0",
		Index: 2,
		MTU:   1500,
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.42.200.5/24")},
	}}
	if p := New(WireGuard, self, lan, nil, cluster); fmt.Sprint(p.Sealed) != "[10.42.0.0/24]" {
		t.Errorf("sealed are %v: neighbours of this machine are among the cluster's addresses", p.Sealed)
	}
	six := keyed(machineOf("self", "fd01::1", "10.42.0.0/24"), 1)
	links[0].Addrs = []netip.Prefix{netip.MustParsePrefix("fd01::1/64")}
	if p := New(WireGuard, six, links, nil, nil); p.PodMTU != 1420 {
		t.Errorf("over IPv6 packets are of up to %d bytes, want 1420", p.PodMTU)
	}
}

// TestChangesOfPeers: what stays is not touched, what is unknown goes.
func TestChangesOfPeers(t *testing.T) {
	peer := func(n byte, at, pods string) Peer {
		return Peer{
			Key:  Key{n},
			At:   netip.MustParseAddr(at),
			Port: 51820,
			Pods: []netip.Prefix{netip.MustParsePrefix(pods)},
		}
	}
	a := peer(1, "10.1.0.1", "10.42.1.0/24")
	b := peer(2, "fd01::2", "10.42.2.0/24")
	moved := peer(2, "10.1.0.3", "10.42.2.0/24")
	again := b
	again.Start = "2"
	movedAgain := moved
	movedAgain.Start = "2"
	roamed := &net.UDPAddr{IP: net.IPv4(10, 1, 0, 9).To4(), Port: 7777}
	said := func(n int) string { return strings.Repeat("0", n) }
	for _, tc := range []struct {
		name       string
		configured map[Key]Peer
		known      map[Key]*net.UDPAddr
		want       []Peer

		keepAlive time.Duration
		out       string
	}{
		{
			"first", nil, nil,
			[]Peer{b},
			25 * time.Second,
			"public_key=02" + said(62) +
				"\npersistent_keepalive_interval=25\nreplace_allowed_ips=true\nendpoint=[fd01::2]:51820\nallowed_ip=10.42.2.0/24\n",
		},
		{"left from an earlier run", nil, map[Key]*net.UDPAddr{{9}: nil}, nil, 0, "public_key=09" + said(62) + "\nremove=true\n"},
		{"nothing new", map[Key]Peer{a.Key: a, b.Key: b}, map[Key]*net.UDPAddr{a.Key: nil, b.Key: nil}, []Peer{b, a}, time.Second, ""},
		{
			"one moved, one gone",
			map[Key]Peer{a.Key: a, b.Key: b},
			map[Key]*net.UDPAddr{a.Key: nil, b.Key: nil},
			[]Peer{moved},
			0,
			"public_key=01" + said(62) + "\nremove=true\npublic_key=02" + said(62) +
				"\npersistent_keepalive_interval=0\nreplace_allowed_ips=true\nendpoint=10.1.0.3:51820\nallowed_ip=10.42.2.0/24\n",
		},
		{
			"started again, behind NAT",
			map[Key]Peer{b.Key: b},
			map[Key]*net.UDPAddr{b.Key: roamed},
			[]Peer{again},
			0,
			"public_key=02" + said(62) + "\nremove=true\npublic_key=02" + said(62) +
				"\npersistent_keepalive_interval=0\nreplace_allowed_ips=true\nendpoint=10.1.0.9:7777\nallowed_ip=10.42.2.0/24\n",
		},
		{
			"started again elsewhere",
			map[Key]Peer{b.Key: b},
			map[Key]*net.UDPAddr{b.Key: roamed},
			[]Peer{movedAgain},
			0,
			"public_key=02" + said(62) + "\nremove=true\npublic_key=02" + said(62) +
				"\npersistent_keepalive_interval=0\nreplace_allowed_ips=true\nendpoint=10.1.0.3:51820\nallowed_ip=10.42.2.0/24\n",
		},
	} {
		if got := uapi(wgtypes.Config{Peers: changes(tc.configured, tc.known, tc.want, tc.keepAlive)}); got != tc.out {
			t.Errorf("%s:\n%swant\n%s", tc.name, got, tc.out)
		}
	}
}
