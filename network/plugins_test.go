// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestPlugins: where plugins attach pods, the range may be on a bridge of theirs; bridges pass the node's rules; pods
// from before go on; and nothing is masqueraded once they have gone.
func TestPlugins(t *testing.T) {
	needRoot(t)
	newOutside(t)
	cfg := newConfig(t)
	network, stop := start(t, cfg)
	nsA := newNetns(t)
	addr := attach(t, network, "a", nsA)
	stop()

	const path = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	was, bridges := os.ReadFile(path)
	if bridges == nil {
		if err := os.WriteFile(path, []byte("0"), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.WriteFile(path, was, 0o644) })
	}
	plugged := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "plugins0"}}
	if err := netlink.LinkAdd(plugged); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netlink.LinkDel(plugged) }()
	gateway := netip.PrefixFrom(network.families[0].gateway, cfg.PodCIDRs[0].Bits())
	if err := netlink.AddrAdd(plugged, &netlink.Addr{IPNet: ipNet(gateway)}); err != nil {
		t.Fatal(err)
	}
	cfg.Plugins = true
	network, stop = start(t, cfg)
	serveIn(t, nsA, ":80")
	wantAnswer(t, "node to a pod from before", "", addr.String()+":80", network.families[0].gateway.String())
	addrs, err := netlink.AddrList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: indexOf(t, network.names.bridge)}},
		netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != network.families[0].gateway.String()+"/32" {
		t.Errorf("the node has %v, %v; want its gateway's address alone", addrs, err)
	}
	if !network.running.Load().tables.masquerades() {
		t.Error("a pod from before is not masqueraded")
	}
	if b, _ := os.ReadFile(path); bridges == nil && strings.TrimSpace(string(b)) != "1" {
		t.Errorf("bridge-nf-call-iptables is %s, want 1", b)
	}
	if err := network.Detach(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	stop()
	network, stop = start(t, cfg)
	if network.running.Load().tables.masquerades() {
		t.Error("masquerades although no pod is its own")
	}
	stop()
	if err := network.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); bridges == nil && strings.TrimSpace(string(b)) != "0" {
		t.Errorf("bridge-nf-call-iptables is %s after the end, want 0 as before", b)
	}
}

func indexOf(t *testing.T, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().Index
}
