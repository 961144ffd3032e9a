// SPDX-License-Identifier: Apache-2.0

package podroutes

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"keelson/client/clienttest"
	"keelson/network/mesh"
	"keelson/network/nettest"
)

// senders collects the source addresses of datagrams to port 53 of a machine.
func senders(t *testing.T, m *nettest.Machine) <-chan netip.Addr {
	t.Helper()
	var c net.PacketConn
	m.Must(func() (err error) {
		c, err = net.ListenPacket("udp", ":53")
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	out := make(chan netip.Addr, 1000)
	go func() { // ends when the socket is closed
		for {
			_, from, err := c.ReadFrom(make([]byte, 64))
			if err != nil {
				return
			}
			out <- from.(*net.UDPAddr).AddrPort().Addr().Unmap()
		}
	}()
	return out
}

// says sends a datagram in the name of an address, which the machine must have.
func says(from *nettest.Machine, name, to netip.Addr) (err error) {
	from.Do(func() {
		var c *net.UDPConn
		if c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(name, 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 53))); err == nil {
			_, err = c.Write([]byte("hello"))
			_ = c.Close()
		}
	})
	return err
}

// accepts reports whether a datagram in that name arrives. The next one, in the sender's own name, does in any case,
// and not before it.
func accepts(t *testing.T, from *nettest.Machine, name, own, to netip.Addr, received <-chan netip.Addr) bool {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for time.Now().Before(end) { // until addresses are resolved
		if says(from, name, to) != nil || says(from, own, to) != nil {
			continue // the address is not the machine's yet
		}
		var got []netip.Addr
		for patience := time.After(time.Second); ; {
			select {
			case a := <-received:
				got = append(got, a)
				if a == own {
					return slices.Contains(got, name)
				}
				continue
			case <-patience:
			}
			break
		}
	}
	t.Fatalf("%s does not reach %s in its own name", own, to)
	return false
}

// TestNothingComesInClear: with WireGuard, packets from pods' addresses are accepted from the tunnel only.
func TestNothingComesInClear(t *testing.T) {
	near := nettest.NewSwitch(t, "near")
	cl := clienttest.New()
	ma := nettest.New(t, "a")
	mb := nettest.New(t, "b")
	mx := nettest.New(t, "x")
	near.Join(ma, 1500, "10.1.0.11/24", "fd01::11/64")
	near.Join(mb, 1500, "10.1.0.12/24", "fd01::12/64")
	intruder := near.Join(mx, 1500, "10.1.0.66/24", "fd01::66/64")
	node := newNode(t, cl, ma, mesh.WireGuard, "10.1.0.11", "10.42.1.0/24", "fd00:42:1::/64")
	b := newNode(t, cl, mb, mesh.WireGuard, "10.1.0.12", "10.42.2.0/24", "fd00:42:2::/64")
	podA, onA := node.pod()
	podB, onB := b.pod()
	late, onLate := node.pod() // what the intruder does to the first has no effect on it
	for i := range 2 {
		wantReach(t, "b to a", podB, onA[i], onB[i])
		wantReach(t, "a to its own other pod", late, onA[i], onLate[i])
	}

	own := []netip.Addr{netip.MustParseAddr("10.1.0.66"), netip.MustParseAddr("fd01::66")}
	at := []netip.Addr{netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("fd01::11")}
	names := [][]netip.Addr{
		{onB[0], onLate[0], netip.MustParseAddr("10.42.77.7")},
		{onB[1], onLate[1], netip.MustParseAddr("fd00:42:77::7")},
	}
	atPod := senders(t, podA)
	atNode := senders(t, ma)
	stranger := []netip.Addr{netip.MustParseAddr("192.168.9.9"), netip.MustParseAddr("fd09::9")}
	var mac net.HardwareAddr
	ma.Must(func() error {
		l, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = l.HardwareAddr
		}
		return err
	})
	for i := range 2 {
		mx.Must(func() error { // a would not answer who asks in another's name
			l, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			return netlink.NeighSet(&netlink.Neigh{
				LinkIndex:    l.Index,
				State:        netlink.NUD_PERMANENT,
				IP:           at[i].AsSlice(),
				HardwareAddr: mac,
			})
		})
		mx.Route(map[int]netip.Prefix{
			0: netip.MustParsePrefix("10.42.1.0/24"),
			1: netip.MustParsePrefix("fd00:42:1::/64"),
		}[i], at[i])
		for _, name := range append(names[i], stranger[i]) {
			intruder.AddAddr(netip.PrefixFrom(name, name.BitLen()).String())
			// else the node knows nothing of it: this shows that it is the pods' names which do not pass
			known := name != stranger[i]
			if got := accepts(t, mx, name, own[i], onA[i], atPod); got == known {
				t.Errorf("a pod receives packets from %s: %v", name, got)
			}
			if got := accepts(t, mx, name, own[i], at[i], atNode); got == known {
				t.Errorf("a node receives packets from %s: %v", name, got)
			}
		}
	}

	flush(t, ma, "keelson-"+node.cfg.ID+"-way")
	for end := time.Now().Add(20 * time.Second); accepts(t, mx, onB[0], own[0], onA[0], atPod); {
		if time.Now().After(end) {
			t.Fatal("what was deleted is not repaired")
		}
	}
	wantReach(t, "b to a after that", podB, onA[0], onB[0])
	node.stop()
	if accepts(t, mx, onB[0], own[0], onA[0], atPod) {
		t.Error("a pod receives packets from another pod while the agent is away")
	}
	node.cfg.Mode = mesh.Auto
	node.cfg.Port = 0
	node.startAgent()
	for end := time.Now().Add(20 * time.Second); !accepts(t, mx, onB[0], own[0], onA[0], atPod); {
		if time.Now().After(end) {
			t.Fatal("the table stays without WireGuard")
		}
	}
}

// flush deletes an inet table.
func flush(t *testing.T, m *nettest.Machine, name string) {
	t.Helper()
	m.Must(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.DelTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
		return c.Flush()
	})
}

// TestKeepAlive: a node that is not where it says it is reaches the others, and is reached once it has given a sign of
// life.
func TestKeepAlive(t *testing.T) {
	near := nettest.NewSwitch(t, "near")
	cl := clienttest.New()
	ma := nettest.New(t, "a")
	mb := nettest.New(t, "b")
	near.Join(ma, 1500, "10.1.0.11/24")
	near.Join(mb, 1500, "10.1.0.12/24")
	a := newNode(t, cl, ma, mesh.WireGuard, "10.1.0.11", "10.42.1.0/24")
	b := newNode(t, cl, mb, mesh.WireGuard, "10.1.0.12", "10.42.2.0/24")
	podA, onA := a.pod()
	_, onB := b.pod()
	wantReach(t, "a to b", podA, onB[0], onA[0])
	a.stop() // it forgets the endpoint of b; first, so that b holds no session that a has lost
	b.stop()
	b.cfg.Encryption.KeepAlive = time.Second
	b.register("10.1.0.99", []string{"10.42.2.0/24"})
	b.startAgent()
	a.startAgent()
	wantReach(t, "a to b, which says it is elsewhere", podA, onB[0], onA[0])
}
