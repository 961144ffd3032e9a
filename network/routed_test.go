// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestPodsAreRouted: what pods of a node send each other passes the node's forward hook, whatever br_netfilter does,
// also after address translation.
func TestPodsAreRouted(t *testing.T) {
	needRoot(t)
	bringUp(t)
	network, _ := start(t, newConfig(t))
	nsA := newNetns(t)
	nsB := newNetns(t)
	addr := attach(t, network, "a", nsA)
	b := attach(t, network, "b", nsB)
	serveIn(t, nsB, ":80")
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tab := conn.AddTable(&nftables.Table{Name: "watch", Family: nftables.TableFamilyIPv4})
	fwd := conn.AddChain(&nftables.Chain{
		Name:     "f",
		Table:    tab,
		Type:     nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter,
	})
	counted := conn.AddRule(&nftables.Rule{Table: tab, Chain: fwd, Exprs: []expr.Any{&expr.Counter{}}})
	pre := conn.AddChain(&nftables.Chain{
		Name:     "p",
		Table:    tab,
		Type:     nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityNATDest,
	})
	r := rulesOf(network.names.table, network.families[0], false)
	conn.AddRule(&nftables.Rule{
		Table: tab,
		Chain: pre,
		Exprs: append(r.inPrefix(r.dst, netip.MustParsePrefix("10.96.0.1/32"), expr.CmpOpEq),
			&expr.Immediate{Register: 1, Data: b.AsSlice()}, &expr.NAT{
				Type:       expr.NATTypeDestNAT,
				Family:     unix.NFPROTO_IPV4,
				RegAddrMin: 1,
			}),
	})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.DelTable(tab)
		if err := conn.Flush(); err != nil {
			t.Error(err)
		}
	})
	for _, v := range []string{"0", "1"} {
		if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte(v), 0o644); err != nil &&
			!os.IsNotExist(err) {
			t.Fatal(err)
		}
		wantAnswer(t, "straight", nsA, b.String()+":80", addr.String())
		wantAnswer(t, "translated", nsA, "10.96.0.1:80", addr.String())
	}
	rules, err := conn.GetRules(tab, fwd)
	if err != nil || len(rules) != 1 {
		t.Fatal(counted, rules, err)
	}
	if got := rules[0].Exprs[0].(*expr.Counter).Packets; got < 20 {
		t.Errorf("the forward hook saw %d packets", got)
	}
	inside(t, nsB, func() {
		addrs, err := net.InterfaceAddrs()
		if err != nil || !strings.Contains(addrs[1].String(), b.String()+"/32") {
			t.Errorf("the pod has %v, %v", addrs, err)
		}
	})
}

// TestBridgedPodsKeepWorking: pods that an earlier version plugged into the bridge reach new ones and are reached.
func TestBridgedPodsKeepWorking(t *testing.T) {
	needRoot(t)
	bringUp(t)
	cfg := newConfig(t)
	network, stop := start(t, cfg)
	nsOld := newNetns(t)
	nsNew := newNetns(t)
	lease, _, err := network.leases.take("old", nsOld, nil)
	if err != nil {
		t.Fatal(err)
	}
	lease.Link = network.names.bridgedLink("old") // as that version did
	if err := network.leases.records.write("old", lease); err != nil {
		t.Fatal(err)
	}
	fd, err := netns.GetFromPath(nsOld)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fd.Close() }()
	err = netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{
			Name:        lease.Link,
			MTU:         1500,
			MasterIndex: indexOf(t, network.names.bridge),
			Flags:       net.FlagUp,
		},
		PeerName:      podLink,
		PeerNamespace: netlink.NsFd(int(fd)),
	})
	if err != nil {
		t.Fatal(err)
	}
	inside(t, nsOld, func() {
		eth, _ := netlink.LinkByName(podLink)
		_ = netlink.LinkSetUp(eth)
		_ = netlink.AddrAdd(eth, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(lease.Addrs[0], 24))})
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: network.families[0].gateway.AsSlice()})
	})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	network, _ = start(t, cfg)
	if again := attach(t, network, "old", nsOld); again != lease.Addrs[0] {
		t.Errorf("the old pod has %s, had %s", again, lease.Addrs[0])
	}
	fresh := attach(t, network, "new", nsNew)
	serveIn(t, nsOld, ":80")
	serveIn(t, nsNew, ":80")
	wantAnswer(t, "new to old", nsNew, lease.Addrs[0].String()+":80", fresh.String())
	wantAnswer(t, "old to new", nsOld, fresh.String()+":80", lease.Addrs[0].String())
	wantAnswer(t, "node to old", "", lease.Addrs[0].String()+":80", network.families[0].gateway.String())
}

// TestBothFamilies: addresses, the way between pods, to the node and outside, host ports, and nothing left.
func TestBothFamilies(t *testing.T) {
	needRoot(t)
	bringUp(t)
	for _, cidrs := range [][]string{{"10.98.7.0/24", "fd00:98:7::/64"}, {"fd00:98:8::/64"}} {
		t.Run(cidrs[0], func(t *testing.T) { reachInBoth(t, cidrs) })
	}
}

func reachInBoth(t *testing.T, cidrs []string) {
	cfg := newConfig(t)
	cfg.PodCIDRs = ranges(cidrs...)
	n, _ := start(t, cfg)
	nsA := newNetns(t)
	nsB := newNetns(t)
	attach(t, n, "a", nsA, PortMapping{HostPort: 8086, ContainerPort: 80})
	attach(t, n, "b", nsB)
	serveIn(t, nsA, ":80")
	for i := range cidrs {
		a := n.leases.of("a").Addrs[i]
		b := n.leases.of("b").Addrs[i]
		gw := n.families[i].gateway
		wantAnswer(t, "pod to pod", nsB, netip.AddrPortFrom(a, 80).String(), b.String())
		wantAnswer(t, "node to pod", "", netip.AddrPortFrom(a, 80).String(), gw.String())
		wantAnswer(t, "host port", nsB, netip.AddrPortFrom(gw, 8086).String(), b.String())
		wantAnswer(t, "host port, from the node", "", netip.AddrPortFrom(gw, 8086).String(), gw.String())
		wantAnswer(t, "host port, from the pod itself", nsA, netip.AddrPortFrom(gw, 8086).String(), gw.String())
	}
}

// TestPodsSendFromTheirOwnAddress: no pod speaks for another.
func TestPodsSendFromTheirOwnAddress(t *testing.T) {
	needRoot(t)
	bringUp(t)
	cfg := newConfig(t)
	cfg.PodCIDRs = ranges("10.98.9.0/24", "fd00:98:9::/64")
	network, _ := start(t, cfg)
	nsA := newNetns(t)
	nsB := newNetns(t)
	attach(t, network, "a", nsA)
	attach(t, network, "b", nsB)
	for i, thief := range []string{"10.98.9.77", "fd00:98:9::77"} {
		var udpConn, s *net.UDPConn
		var err error
		b := network.leases.of("b").Addrs[i]
		inside(t, nsB, func() { s, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(b, 99))) })
		if err != nil {
			t.Fatal(err)
		}
		addr := netip.MustParseAddr(thief)
		inside(t, nsA, func() {
			eth, _ := netlink.LinkByName(podLink)
			if err = netlink.AddrAdd(eth, address(hostRange(addr))); err == nil {
				udpConn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)),
					net.UDPAddrFromAddrPort(netip.AddrPortFrom(b, 99)))
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = udpConn.Write([]byte("mine"))
		_ = udpConn.Close()
		inside(t, nsA, func() { // what comes after it arrives
			udpConn, err = net.DialUDP("udp",
				net.UDPAddrFromAddrPort(netip.AddrPortFrom(network.leases.of("a").Addrs[i], 0)),
				net.UDPAddrFromAddrPort(netip.AddrPortFrom(b, 99)))
		})
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		var m int
		var from netip.AddrPort
		for range 50 { // a datagram may be lost
			_, _ = udpConn.Write([]byte("own"))
			_ = s.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			if m, from, err = s.ReadFromUDPAddrPort(buf); err == nil {
				break
			}
		}
		if err != nil || string(buf[:m]) != "own" {
			t.Errorf("got %q from %s, %v", buf[:m], from, err)
		}
		_ = udpConn.Close()
		_ = s.Close()
	}
}

func TestClusterSet(t *testing.T) {
	got := disjoint(ranges("10.42.1.0/24", "10.42.0.0/16", "10.41.0.0/24", "fd00::/64", "10.42.0.0/16", "255.0.0.0/8"),
		true)
	if want := ranges("10.41.0.0/24", "10.42.0.0/16", "255.0.0.0/8"); len(got) != 3 || got[0] != want[0] ||
		got[1] != want[1] || got[2] != want[2] {
		t.Errorf("got %v, want %v", got, want)
	}
	if a := after(netip.MustParsePrefix("10.42.0.0/23")); a.String() != "10.42.2.0" {
		t.Errorf("after 10.42.0.0/23: %s", a)
	}
	if a := after(netip.MustParsePrefix("255.0.0.0/8")); a.IsValid() {
		t.Errorf("after 255.0.0.0/8: %s", a)
	}
}

// TestMasqueradeOnlyWhatLeaves: a machine that belongs to the cluster sees the pod's address, another the node's.
func TestMasqueradeOnlyWhatLeaves(t *testing.T) {
	needRoot(t)
	bringUp(t)
	network, _ := start(t, newConfig(t))
	outside, uplink := newOutside(t)
	ns := newNetns(t)
	addr := attach(t, network, "a", ns)
	serveIn(t, outside, ":90")
	wantAnswer(t, "to a stranger", ns, "192.0.2.2:90", uplink)
	if err := network.SetCluster(ranges("192.0.2.2/32", "10.200.0.0/16")); err != nil {
		t.Fatal(err)
	}
	var err error
	inside(t, outside, func() {
		eth, _ := netlink.LinkByName(podLink)
		err = netlink.RouteAdd(&netlink.Route{
			LinkIndex: eth.Attrs().Index,
			Dst:       ipNet(network.families[0].pods),
			Gw:        net.ParseIP(uplink),
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, "to a node", ns, "192.0.2.2:90", addr.String())
	if err := network.SetCluster(nil); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, "to a stranger again", ns, "192.0.2.2:90", uplink)
}

// TestClusterSetIsWrittenInTheEnd: what could not be written is tried again, and what is there is not written again.
func TestClusterSetIsWrittenInTheEnd(t *testing.T) {
	needRoot(t)
	network, _ := start(t, newConfig(t))
	tables := network.running.Load().tables
	if err := tables.purge(); err != nil {
		t.Fatal(err)
	}
	want := ranges("192.0.2.2/32")
	for range 2 {
		if err := network.SetCluster(want); err == nil {
			t.Error("SetCluster without a table: got no error")
		}
	}
	if err := tables.setUp(); err != nil {
		t.Fatal(err)
	}
	if err := network.SetCluster(want); err != nil || !slices.Equal(tables.cluster, want) {
		t.Errorf("written are %v, %v, want %v", tables.cluster, err, want)
	}
}
