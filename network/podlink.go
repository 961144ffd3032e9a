// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

const podLink = "eth0"

// connect makes the pod's link, unless it exists.
func (n *Network) connect(k *kernel, l *lease) error {
	n.finishDelete(k, l.Link) // an old link of this sandbox
	ns, err := openNetns(l.Netns)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter %s: %w", l.Netns, err)
	}
	defer inside.Close()
	err = n.addVeth(k, l, ns)
	if errors.Is(err, unix.EEXIST) {
		if n.connected(k, inside, l) {
			return nil
		}
		if err := k.remove(l.Link); err != nil {
			return err
		}
		err = n.addVeth(k, l, ns)
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return errors.New("this kernel has no veth links (CONFIG_VETH), which the pod network needs")
	case err != nil:
		return fmt.Errorf("create link %s: %w", l.Link, err)
	}
	return n.configure(inside, l)
}

func openNetns(path string) (netns.NsHandle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return -1, fmt.Errorf("open network namespace: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return ns, nil
}

// addVeth makes the veth pair, with one end in the pod, and adds the routes to the pod's addresses.
func (n *Network) addVeth(k *kernel, l *lease, ns netns.NsHandle) error {
	n.mu.Lock()
	mtu := n.mtu
	n.mu.Unlock()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.Link
	attrs.MTU = mtu
	attrs.Group = n.group
	attrs.Flags = net.FlagUp
	attrs.HardwareAddr = hardwareAddr(l.Link)
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         podLink,
		PeerNamespace:    netlink.NsFd(int(ns)),
		PeerHardwareAddr: podHardwareAddr(l.Addrs[0]),
	}
	if err := k.rt.LinkAdd(veth); err != nil {
		return err
	}
	if err := n.setUpPodLink(l.Link); err != nil {
		return err
	}
	return n.addRoutes(k, veth.Attrs().Index, l)
}

// addRoutes adds the host's routes to the pod's addresses, and permanent neighbour entries, so that neither ARP nor NDP
// is needed.
func (n *Network) addRoutes(k *kernel, index int, l *lease) error {
	mac := podHardwareAddr(l.Addrs[0])
	for _, addr := range l.Addrs {
		f, ok := n.of(addr)
		if !ok {
			continue
		}
		route := &netlink.Route{
			LinkIndex: index,
			Dst:       hostRange(addr),
			Src:       f.gateway.AsSlice(),
			Scope:     netlink.SCOPE_LINK,
		}
		if err := k.rt.RouteReplace(route); err != nil {
			return fmt.Errorf("add route to %s: %w", addr, err)
		}
		if err := k.rt.NeighSet(neighbour(index, addr, mac)); err != nil {
			return fmt.Errorf("add neighbour %s: %w", addr, err)
		}
	}
	return nil
}

func neighbour(index int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex:    index,
		State:        netlink.NUD_PERMANENT,
		IP:           a.AsSlice(),
		HardwareAddr: mac,
	}
}

// repairRoutes adds the routes to all pods again: they are lost when an administrator sets a link down and up.
func (n *Network) repairRoutes(k *kernel) error {
	n.mu.Lock()
	leases := map[string]*lease{}
	for _, l := range n.leases {
		leases[l.Link] = l
	}
	n.mu.Unlock()
	if len(leases) == 0 {
		return nil
	}
	all, err := linux.Dump(k.rt.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, link := range all {
		l := leases[link.Attrs().Name]
		if l == nil || link.Attrs().Group != n.group || link.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		if err := n.addRoutes(k, link.Attrs().Index, l); err != nil {
			return err
		}
	}
	return nil
}

// configure sets up the pod's end: its addresses as host prefixes, and the default route by the gateway, which is
// on-link.
func (n *Network) configure(inside *netlink.Handle, l *lease) error {
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}
	if err := inside.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	link, err := inside.LinkByName(podLink)
	if err != nil {
		return fmt.Errorf("find %s: %w", podLink, err)
	}
	if err := inside.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", podLink, err)
	}
	for _, a := range l.Addrs {
		f, ok := n.of(a)
		if !ok {
			continue
		}
		if err := inside.AddrAdd(link, address(hostRange(a))); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("give %s address %s: %w", podLink, a, err)
		}
		if err := inside.NeighSet(neighbour(link.Attrs().Index, f.gateway, hardwareAddr(l.Link))); err != nil {
			return fmt.Errorf("add the gateway's neighbour entry: %w", err)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: f.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		if err := inside.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add default route: %w", err)
		}
	}
	return nil
}

// connected reports whether the pod has its address and its link is of this network. A link of an earlier version, on
// the bridge, does not change.
func (n *Network) connected(k *kernel, inside *netlink.Handle, l *lease) bool {
	host, err := k.rt.LinkByName(l.Link)
	if err != nil {
		return false
	}
	bridged := host.Attrs().MasterIndex == k.bridge
	if !bridged && host.Attrs().Group != n.group {
		return false
	}
	pod, err := inside.LinkByName(podLink)
	if err != nil || pod.Attrs().ParentIndex != host.Attrs().Index || host.Attrs().ParentIndex != pod.Attrs().Index {
		return false
	}
	have, err := linux.Dump(func() ([]netlink.Addr, error) { return inside.AddrList(pod, netlink.FAMILY_ALL) })
	if err != nil {
		return false
	}
	if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(l.Addrs[0].AsSlice()) }) {
		return false
	}
	return bridged || n.setUpPodLink(l.Link) == nil && n.addRoutes(k, host.Attrs().Index, l) == nil && n.configure(
		inside, l) == nil
}
