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

// setUp makes or corrects bridge, sysctls and rules.
func (n *Network) setUp(k *kernel) error {
	if err := n.setUpBridge(k); err != nil {
		return err
	}
	if err := n.setUpForwarding(k); err != nil {
		return err
	}
	if err := n.setUpRules(k); err != nil {
		return err
	}
	n.setUpConntrack() // the rules have loaded the kernel's connection table
	if err := n.deleteUnleased(k); err != nil {
		return err
	}
	return n.repairRoutes(k)
}

func (n *Network) setUpBridge(k *kernel) error {
	if old, err := k.rt.LinkByName(n.bridge); err == nil {
		k.bridge = old.Attrs().Index // checkOverlap skips its addresses
	}
	if !n.cfg.Plugins {
		if err := n.checkOverlap(k); err != nil {
			return err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.bridge
	attrs.MTU = n.cfg.MTU
	attrs.HardwareAddr = hardwareAddr(n.bridge)
	snooping := false
	err := k.rt.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return errors.New("this kernel has no network bridges (CONFIG_BRIDGE), which the pod network needs")
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("create bridge %s: not permitted (needs root): %w", n.bridge, err)
	case err != nil && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create bridge %s: %w", n.bridge, err)
	}
	link, err := k.rt.LinkByName(n.bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", n.bridge, err)
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("the name of the pod network's bridge, %s, is used by a link of type %s", n.bridge,
			link.Type())
	}
	k.bridge = link.Attrs().Index
	k.mac = link.Attrs().HardwareAddr
	if link.Attrs().MTU != n.cfg.MTU {
		if err := k.rt.LinkSetMTU(link, n.cfg.MTU); err != nil {
			return fmt.Errorf("set mtu of bridge %s to %d: %w", n.bridge, n.cfg.MTU, err)
		}
	}
	if err := k.rt.LinkSetGroup(link, int(int32(n.group))); err != nil { // the kernel takes the bits as they are
		return fmt.Errorf("set group of bridge %s: %w", n.bridge, err)
	}
	if err := n.setUpAddresses(k, link); err != nil {
		return err
	}
	if err := k.rt.LinkSetUp(link); err != nil {
		return fmt.Errorf("set bridge %s up: %w", n.bridge, err)
	}
	return nil
}

// setUpAddresses sets the bridge's addresses to the gateways. Their prefix is the whole pod range, which routes to the
// bridge; the route of each pod is more specific. Only pods of earlier versions are on the bridge.
func (n *Network) setUpAddresses(k *kernel, link netlink.Link) error {
	have, err := linux.Dump(func() ([]netlink.Addr, error) { return k.rt.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of bridge %s: %w", n.bridge, err)
	}
	there := map[string]bool{}
	for _, a := range have {
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		if n.wanted(a.IPNet) {
			there[a.IPNet.String()] = true
			continue
		}
		if err := k.rt.AddrDel(link, &a); err != nil {
			return fmt.Errorf("take %s off bridge %s: %w", a.IPNet, n.bridge, err)
		}
	}
	for _, f := range n.families {
		want := n.onBridge(f)
		if there[want.String()] {
			continue
		}
		if err := k.rt.AddrAdd(link, address(want)); err != nil {
			return fmt.Errorf("give bridge %s address %s: %w", n.bridge, want, err)
		}
	}
	return nil
}

func (n *Network) wanted(a *net.IPNet) bool {
	for _, f := range n.families {
		if a.String() == n.onBridge(f).String() {
			return true
		}
	}
	return false
}

// onBridge returns the gateway's address with its prefix. With CNI plugins it is a host prefix: the range may be on a
// bridge of a plugin.
func (n *Network) onBridge(f family) *net.IPNet {
	if n.cfg.Plugins {
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
func (n *Network) checkOverlap(k *kernel) error {
	all, err := linux.Dump(func() ([]netlink.Addr, error) { return k.rt.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range all {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.LinkIndex == k.bridge {
			continue
		}
		ones, _ := a.Mask.Size()
		p := netip.PrefixFrom(ip.Unmap(), ones).Masked()
		for _, f := range n.families {
			if p.Overlaps(f.pods) && p.Bits() > 0 {
				return fmt.Errorf("pod CIDR %s overlaps with %s on this machine: choose another", f.pods, a.IPNet)
			}
		}
	}
	return nil
}
