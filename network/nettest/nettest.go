// SPDX-License-Identifier: Apache-2.0

// Package nettest makes machines for tests: network namespaces that are connected by switches, whose cables can be cut
// and repaired. Tests of network, podroutes and proxy call it. Everything is removed at the end of the test.
package nettest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Machine is a network namespace.
type Machine struct {
	Name string
	// Path is the path of the namespace.
	Path string
	tb   testing.TB
	next int
}

// New makes a machine whose lo is up. Tests that are not root are skipped.
func New(tb testing.TB, name string) *Machine {
	tb.Helper()
	if os.Getuid() != 0 {
		tb.Skip("needs root: makes network namespaces")
	}
	machine := &Machine{Name: name, Path: filepath.Join(tb.TempDir(), name), tb: tb}
	if err := os.WriteFile(machine.Path, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	made := make(chan error)
	go func() { // ends when the namespace is made; its thread is not used again
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), machine.Path, "", unix.MS_BIND,
				"")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := unix.Unmount(machine.Path, unix.MNT_DETACH); err != nil {
			tb.Error(err)
		}
	})
	machine.Must(func() error { return up("lo") })
	return machine
}

// Do runs f on a thread in the machine's namespace and waits for it.
func (m *Machine) Do(f func()) {
	m.tb.Helper()
	m.Must(func() error {
		f()
		return nil
	})
}

// Must runs f on a thread in the machine; its error ends the test.
func (m *Machine) Must(f func() error) {
	m.tb.Helper()
	if err := <-m.Go(f); err != nil {
		m.tb.Fatalf("machine %s: %v", m.Name, err)
	}
}

// Go runs f on a thread in the machine and returns at once; the channel has f's result.
func (m *Machine) Go(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { // ends with f; its thread is not used again
		runtime.LockOSThread()
		ns, err := netns.GetFromPath(m.Path)
		if err == nil {
			err = netns.Set(ns)
			_ = ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return done
}

// Listen listens in the machine until the test ends.
func (m *Machine) Listen(network, addr string) net.Listener {
	m.tb.Helper()
	var l net.Listener
	m.Must(func() (err error) {
		l, err = net.Listen(network, addr) //nolint:noctx // it ends with the test
		return err
	})
	m.tb.Cleanup(func() { _ = l.Close() })
	return l
}

// Route adds a route in the machine; an invalid dst is the default route.
func (m *Machine) Route(dst netip.Prefix, via netip.Addr) {
	m.tb.Helper()
	r := &netlink.Route{Gw: via.AsSlice()}
	if dst.IsValid() {
		r.Dst = ipNet(dst)
	}
	m.Must(func() error { return netlink.RouteAdd(r) })
}

// Forward enables forwarding on the machine.
func (m *Machine) Forward() {
	m.tb.Helper()
	m.Must(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
}

// Switch connects machines.
type Switch struct {
	inner *Machine
	ports int
}

// NewSwitch makes a switch without cables.
func NewSwitch(tb testing.TB, name string) *Switch {
	tb.Helper()
	s := &Switch{inner: New(tb, name)}
	s.inner.Must(func() error {
		return errors.Join(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}), up("br0"))
	})
	return s
}

// Machine returns the namespace of the switch itself, which sees all packets.
func (s *Switch) Machine() *Machine { return s.inner }

// Cable is between a machine and a switch.
type Cable struct {
	// Link is its name in the machine.
	Link string
	sw   *Switch
	port string
	m    *Machine
}

// Join connects the machine by a cable and sets the addresses of its link.
func (s *Switch) Join(machine *Machine, mtu int, addrs ...string) *Cable {
	machine.tb.Helper()
	cable := &Cable{
		Link: fmt.Sprintf("eth%d", machine.next),
		sw:   s,
		port: fmt.Sprintf("port%d", s.ports),
		m:    machine,
	}
	machine.next++
	s.ports++
	far, err := netns.GetFromPath(machine.Path)
	if err != nil {
		machine.tb.Fatal(err)
	}
	defer func() { _ = far.Close() }()
	s.inner.Must(func() error {
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		attrs := netlink.LinkAttrs{
			Name:        cable.port,
			MTU:         mtu,
			MasterIndex: br.Attrs().Index,
			Flags:       net.FlagUp,
		}
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:     attrs,
			PeerName:      cable.Link,
			PeerNamespace: netlink.NsFd(int(far)),
		})
	})
	machine.Must(func() error {
		l, err := netlink.LinkByName(cable.Link)
		if err == nil {
			err = errors.Join(netlink.LinkSetMTU(l, mtu), netlink.LinkSetUp(l))
		}
		return err
	})
	for _, a := range addrs {
		cable.AddAddr(a)
	}
	return cable
}

// AddAddr adds an address to the machine's end.
func (c *Cable) AddAddr(text string) {
	c.m.tb.Helper()
	c.address(text, netlink.AddrAdd)
}

// DelAddr removes an address from the machine's end.
func (c *Cable) DelAddr(text string) {
	c.m.tb.Helper()
	c.address(text, netlink.AddrDel)
}

func (c *Cable) address(text string, do func(netlink.Link, *netlink.Addr) error) {
	c.m.tb.Helper()
	c.m.Must(func() error {
		l, err := netlink.LinkByName(c.Link)
		if err != nil {
			return err
		}
		a := &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(text))}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		return do(l, a)
	})
}

// Rate limits the machine's sending rate, in bytes per second. Packets that would wait longer than 50 ms are dropped.
func (c *Cable) Rate(bytes uint64) {
	c.m.tb.Helper()
	c.m.Must(func() error {
		l, err := netlink.LinkByName(c.Link)
		if err != nil {
			return err
		}
		const burst = 256 << 10
		return netlink.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: l.Attrs().Index,
				Handle:    netlink.MakeHandle(1, 0),
				Parent:    netlink.HANDLE_ROOT,
			},
			Rate:   bytes,
			Buffer: netlink.Xmittime(bytes, burst),
			Limit:  uint32(bytes/20) + burst, // a test's rate is small
		})
	})
}

// Cut drops all packets; the machine's link stays up but loses its carrier. Repair undoes it.
func (c *Cable) Cut() {
	c.m.tb.Helper()
	c.sw.inner.Must(func() error {
		l, err := netlink.LinkByName(c.port)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	})
}

// Repair undoes Cut.
func (c *Cable) Repair() {
	c.m.tb.Helper()
	c.sw.inner.Must(func() error { return up(c.port) })
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
