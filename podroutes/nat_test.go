// SPDX-License-Identifier: Apache-2.0

package podroutes

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"keelson/client/clienttest"
	"keelson/network/mesh"
	"keelson/network/nettest"
)

// masquerade lets what leaves a machine by a link have the machine's address.
func masquerade(t *testing.T, router *nettest.Machine, link string) {
	t.Helper()
	router.Must(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "nat"})
		chain := c.AddChain(&nftables.Chain{
			Name:     "out",
			Table:    table,
			Type:     nftables.ChainTypeNAT,
			Hooknum:  nftables.ChainHookPostrouting,
			Priority: nftables.ChainPriorityNATSource,
		})
		name := make([]byte, 16)
		copy(name, link)
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
			&expr.Masq{},
		}})
		return c.Flush()
	})
}

// TestWireGuardBehindNAT: a node behind NAT, which nobody can call, is reached again at once when it, or the node that
// it calls, has started again: not after the three minutes that a lost session lasts.
func TestWireGuardBehindNAT(t *testing.T) {
	near := nettest.NewSwitch(t, "near")
	home := nettest.NewSwitch(t, "home")
	router := nettest.New(t, "router")
	near.Join(router, 1500, "10.1.0.1/24")
	home.Join(router, 1500, "10.2.0.1/24")
	router.Forward()
	masquerade(t, router, "eth0")
	cl := clienttest.New()
	ma := nettest.New(t, "a")
	mc := nettest.New(t, "c")
	near.Join(ma, 1500, "10.1.0.11/24")
	home.Join(mc, 1500, "10.2.0.13/24")
	mc.Route(netip.Prefix{}, netip.MustParseAddr("10.2.0.1"))
	rangeA := []string{"10.42.1.0/24", "fd00:42:1::/64"}
	rangeC := []string{"10.42.3.0/24", "fd00:42:3::/64"}
	a := newNode(t, cl, ma, mesh.WireGuard, "10.1.0.11", rangeA...)
	c := newNode(t, cl, mc, mesh.WireGuard, "10.2.0.13", rangeC...)
	c.stop()
	c.cfg.Encryption.KeepAlive = 25 * time.Second
	c.startAgent()
	podA, _ := a.pod()
	podC, onC := c.pod()
	heard := datagrams(t, podC)
	wantHeard(t, "a to c", podA, onC[0], heard)

	a.stop()
	a.startAgent()
	a.register("10.1.0.11", rangeA)
	wantHeard(t, "a to c after a has started again", podA, onC[0], heard)

	c.stop()
	c.startAgent()
	c.register("10.2.0.13", rangeC)
	wantHeard(t, "a to c after c has started again", podA, onC[0], heard)

	c.stop()
	c.register("10.2.0.13", rangeC)
	c.startAgent()
	wantHeard(t, "a to c after c has registered and started again", podA, onC[0], heard)
}

// datagrams counts those that arrive at port 99 of a pod.
func datagrams(t *testing.T, pod *nettest.Machine) *atomic.Int64 {
	t.Helper()
	var conn net.PacketConn
	pod.Must(func() (err error) {
		conn, err = net.ListenPacket("udp", ":99")
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	heard := &atomic.Int64{}
	go func() { // ends when the listener is closed
		for {
			if _, _, err := conn.ReadFrom(make([]byte, 64)); err != nil {
				return
			}
			heard.Add(1)
		}
	}()
	return heard
}

// wantHeard sends datagrams until one arrives. They are not answered: a node that sends data makes a handshake when it
// gets no answer for 15 s.
func wantHeard(t *testing.T, what string, from *nettest.Machine, to netip.Addr, heard *atomic.Int64) {
	t.Helper()
	before := heard.Load()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		from.Do(func() {
			if conn, err := net.Dial("udp", netip.AddrPortFrom(to, 99).String()); err == nil {
				_, _ = conn.Write([]byte("hi"))
				_ = conn.Close()
			}
		})
		if heard.Load() > before {
			return
		}
	}
	t.Errorf("%s: nothing arrives in 20 s", what)
}
