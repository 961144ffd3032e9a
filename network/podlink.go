// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

const podLink = "eth0"

// podLinks are the pods' veth pairs, with the host's routes to the pods.
type podLinks struct {
	rt       *netlink.Handle
	names    names
	families families
}

// list returns the pods' links: those of this network's group, and those on the bridge, where earlier versions attached
// pods.
func (p *podLinks) list() ([]string, error) {
	all, err := linux.Dump(p.rt.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	bridge, err := linkIndex(p.rt, p.names.bridge)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, l := range all {
		a := l.Attrs()
		if l.Type() == "veth" && (a.Group == p.names.group && strings.HasPrefix(a.Name, p.names.linkPrefix) ||
			bridge != 0 && a.MasterIndex == bridge) {
			out = append(out, a.Name)
		}
	}
	return out, nil
}

// remove deletes a veth pair by one of its links. It takes some 10 ms, because the kernel waits for an RCU grace
// period.
func (p *podLinks) remove(name string) error {
	link, err := p.rt.LinkByName(name)
	if isNoLink(err) {
		return nil
	}
	if err == nil {
		err = p.rt.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

// purge removes the links of the leases and all others of this network, and then the bridge.
func (p *podLinks) purge(leases map[string]*lease) error {
	names, err := p.list()
	if err != nil {
		return err
	}
	names = slices.AppendSeq(names, maps.Keys(leases))
	var errs []error
	for _, name := range append(names, p.names.bridge) {
		errs = append(errs, p.remove(name))
	}
	return errors.Join(errs...)
}

// connect makes the pod's link, unless it exists.
func (p *podLinks) connect(l *lease, mtu int) error {
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
	err = p.addVeth(l, ns, mtu)
	if errors.Is(err, unix.EEXIST) {
		if p.connected(inside, l) {
			return nil
		}
		if err := p.remove(l.Link); err != nil {
			return err
		}
		err = p.addVeth(l, ns, mtu)
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return errors.New("this kernel has no veth links (CONFIG_VETH), which the pod network needs")
	case err != nil:
		return fmt.Errorf("create link %s: %w", l.Link, err)
	}
	return p.configure(inside, l)
}

func openNetns(path string) (netns.NsHandle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return -1, fmt.Errorf("open network namespace: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return ns, nil
}

// addVeth makes the veth pair, with one end in the pod, and adds the routes to the pod's addresses.
func (p *podLinks) addVeth(l *lease, ns netns.NsHandle, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.Link
	attrs.MTU = mtu
	attrs.Group = p.names.group
	attrs.Flags = net.FlagUp
	attrs.HardwareAddr = hardwareAddr(l.Link)
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         podLink,
		PeerNamespace:    netlink.NsFd(int(ns)),
		PeerHardwareAddr: podHardwareAddr(l.Addrs[0]),
	}
	if err := p.rt.LinkAdd(veth); err != nil {
		return err
	}
	if err := forwardPods(l.Link, p.families); err != nil {
		return err
	}
	return p.addRoutes(veth.Attrs().Index, l)
}

// addRoutes adds the host's routes to the pod's addresses, and permanent neighbour entries, so that neither ARP nor NDP
// is needed.
func (p *podLinks) addRoutes(index int, l *lease) error {
	mac := podHardwareAddr(l.Addrs[0])
	for _, addr := range l.Addrs {
		f, ok := p.families.of(addr)
		if !ok {
			continue
		}
		route := &netlink.Route{
			LinkIndex: index,
			Dst:       hostRange(addr),
			Src:       f.gateway.AsSlice(),
			Scope:     netlink.SCOPE_LINK,
		}
		if err := p.rt.RouteReplace(route); err != nil {
			return fmt.Errorf("add route to %s: %w", addr, err)
		}
		if err := p.rt.NeighSet(neighbour(index, addr, mac)); err != nil {
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

// repairRoutes adds the routes to the pods of the leases, by link, again: they are lost when an administrator sets a
// link down and up.
func (p *podLinks) repairRoutes(leases map[string]*lease) error {
	if len(leases) == 0 {
		return nil
	}
	all, err := linux.Dump(p.rt.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, link := range all {
		l := leases[link.Attrs().Name]
		if l == nil || link.Attrs().Group != p.names.group || link.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		if err := p.addRoutes(link.Attrs().Index, l); err != nil {
			return err
		}
	}
	return nil
}

// configure sets up the pod's end: its addresses as host prefixes, and the default route by the gateway, which is
// on-link.
func (p *podLinks) configure(inside *netlink.Handle, l *lease) error {
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
		f, ok := p.families.of(a)
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
func (p *podLinks) connected(inside *netlink.Handle, l *lease) bool {
	host, err := p.rt.LinkByName(l.Link)
	if err != nil {
		return false
	}
	bridge, err := linkIndex(p.rt, p.names.bridge)
	if err != nil {
		return false
	}
	bridged := bridge != 0 && host.Attrs().MasterIndex == bridge
	if !bridged && host.Attrs().Group != p.names.group {
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
	return bridged || forwardPods(l.Link, p.families) == nil && p.addRoutes(host.Attrs().Index, l) == nil &&
		p.configure(inside, l) == nil
}
