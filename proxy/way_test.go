// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"keelson/network/nft"
	"keelson/proxy/services"
)

// TestOldRulesLeaveTheWay: rules of an earlier process, or of a table without an owner, lead the API server's address
// elsewhere. A process that starts clears its way, and leaves other frontends alone.
func TestOldRulesLeaveTheWay(t *testing.T) {
	world := newWorld(t)
	const table = "keelson-gone-svc"
	server := netip.MustParseAddrPort("192.0.2.9:6443")
	other := netip.MustParseAddrPort("192.0.2.9:6444")
	for _, at := range []netip.AddrPort{server, other} {
		l := world.client.Listen("tcp", at.String())
		go func() { // ends when the listener is closed
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("server\n"))
				_ = c.Close()
			}
		}()
	}
	tb := services.Base(table, services.Node{})
	for _, at := range []netip.AddrPort{server, other} {
		key := nft.Addr(at.Addr()) + nft.Proto(6) + nft.PortNumber(at.Port())
		tb.Put("external4", key, nft.ToChain("refuse-it"))
		tb.Put("guarded4", key, nft.ToDrop)
	}
	tb.Put("nodeports4", nft.Proto(6)+nft.PortNumber(server.Port()), nft.ToDrop)
	tb.AddChain(nft.Chain{Name: "refuse-it", Rules: []nft.Rule{{nft.Drop()}}})
	x, err := nft.Open(nft.Config{Name: table, NetNS: world.cfg.NetNS})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Write(tb); err != nil {
		t.Fatal(err)
	}
	reaches := func(at netip.AddrPort) (err error) {
		world.node.Do(func() {
			var c net.Conn
			if c, err = (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", at.String()); err == nil {
				err = c.Close()
			}
		})
		return err
	}
	if reaches(server) == nil {
		t.Fatal("the old rules do not stand in the way")
	}
	if err := ClearWay(world.cfg.NetNS, []netip.AddrPort{server}); err != nil {
		t.Fatal(err)
	}
	if err := ClearWay(world.cfg.NetNS, []netip.AddrPort{server}); err != nil {
		t.Errorf("when nothing is left to clear: %v", err)
	}
	if err := reaches(server); err != nil {
		t.Errorf("the way to the API server is not clear: %v", err)
	}
	if reaches(other) == nil {
		t.Error("another frontend was cleared, too")
	}
}
