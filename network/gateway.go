// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

// gateway is the bridge with the gateways' addresses.
type gateway struct {
	rt       *netlink.Handle
	names    names
	families families
	plugins  bool
	mtu      int
}

// setUp makes or corrects the bridge.
func (g *gateway) setUp() error {
	if !g.plugins {
		if err := g.checkOverlap(); err != nil {
			return err
		}
	}
	link, err := g.create()
	if err != nil {
		return err
	}
	if link.Attrs().MTU != g.mtu {
		if err := g.rt.LinkSetMTU(link, g.mtu); err != nil {
			return fmt.Errorf("set mtu of bridge %s to %d: %w", g.names.bridge, g.mtu, err)
		}
	}
	if err := g.rt.LinkSetGroup(link, int(int32(g.names.group))); err != nil { // the kernel takes the bits as they are
		return fmt.Errorf("set group of bridge %s: %w", g.names.bridge, err)
	}
	if err := g.setUpAddresses(link); err != nil {
		return err
	}
	if err := g.rt.LinkSetUp(link); err != nil {
		return fmt.Errorf("set bridge %s up: %w", g.names.bridge, err)
	}
	return nil
}

// create makes the bridge unless it exists, and returns it.
func (g *gateway) create() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = g.names.bridge
	attrs.MTU = g.mtu
	attrs.HardwareAddr = hardwareAddr(g.names.bridge)
	snooping := false
	err := g.rt.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, errors.New("this kernel has no network bridges (CONFIG_BRIDGE), which the pod network needs")
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("create bridge %s: not permitted (needs root): %w", g.names.bridge, err)
	case err != nil && !errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("create bridge %s: %w", g.names.bridge, err)
	}
	link, err := g.rt.LinkByName(g.names.bridge)
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", g.names.bridge, err)
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("the name of the pod network's bridge, %s, is used by a link of type %s", g.names.bridge,
			link.Type())
	}
	return link, nil
}

// setUpAddresses sets the bridge's addresses to the gateways. Their prefix is the whole pod range, which routes to the
// bridge; the route of each pod is more specific. Only pods of earlier versions are on the bridge.
func (g *gateway) setUpAddresses(link netlink.Link) error {
	have, err := linux.Dump(func() ([]netlink.Addr, error) { return g.rt.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of bridge %s: %w", g.names.bridge, err)
	}
	there := map[string]bool{}
	for _, a := range have {
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		if g.wanted(a.IPNet) {
			there[a.IPNet.String()] = true
			continue
		}
		if err := g.rt.AddrDel(link, &a); err != nil {
			return fmt.Errorf("take %s off bridge %s: %w", a.IPNet, g.names.bridge, err)
		}
	}
	for _, f := range g.families {
		want := g.onBridge(f)
		if there[want.String()] {
			continue
		}
		if err := g.rt.AddrAdd(link, address(want)); err != nil {
			return fmt.Errorf("give bridge %s address %s: %w", g.names.bridge, want, err)
		}
	}
	return nil
}

func (g *gateway) wanted(a *net.IPNet) bool {
	for _, f := range g.families {
		if a.String() == g.onBridge(f).String() {
			return true
		}
	}
	return false
}

// onBridge returns the gateway's address with its prefix. With CNI plugins it is a host prefix: the range may be on a
// bridge of a plugin.
func (g *gateway) onBridge(f family) *net.IPNet {
	if g.plugins {
		return hostRange(f.gateway)
	}
	return ipNet(netip.PrefixFrom(f.gateway, f.pods.Bits()))
}

// address returns an address without IPv6 duplicate address detection, so that it is usable at once.
func address(a *net.IPNet) *netlink.Addr {
	out := &netlink.Addr{IPNet: a}
	if a.IP.To4() == nil {
		out.Flags = unix.IFA_F_NODAD
	}
	return out
}

// checkOverlap refuses a pod range that another link of this machine uses: packets would be lost silently.
func (g *gateway) checkOverlap() error {
	own, err := linkIndex(g.rt, g.names.bridge)
	if err != nil {
		return err
	}
	all, err := linux.Dump(func() ([]netlink.Addr, error) { return g.rt.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range all {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.LinkIndex == own {
			continue
		}
		ones, _ := a.Mask.Size()
		p := netip.PrefixFrom(ip.Unmap(), ones).Masked()
		for _, f := range g.families {
			if p.Overlaps(f.pods) && p.Bits() > 0 {
				return fmt.Errorf("pod CIDR %s overlaps with %s on this machine: choose another", f.pods, a.IPNet)
			}
		}
	}
	return nil
}
