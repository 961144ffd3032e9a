// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const podLink = "eth0"

// kernel holds the open doors to the kernel of the network namespace that Run was called in.
type kernel struct {
	rt     *netlink.Handle
	bridge int // index
	mac    net.HardwareAddr

	nftMu sync.Mutex // one transaction at a time
	nft   *nftables.Conn
}

func openKernel() (*kernel, error) {
	rt, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	nft, err := nftables.New(nftables.AsLasting())
	if err != nil {
		rt.Close()
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			return nil, errors.New("this kernel has no nftables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES), which the pod network needs")
		}
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &kernel{rt: rt, nft: nft}, nil
}

func (k *kernel) close() {
	k.rt.Close()
	_ = k.nft.CloseLasting() // a socket; there is nothing to lose
}

// hardwareAddr derives a locally administered address from a name, so that it stays the same over restarts.
func hardwareAddr(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// podHardwareAddr follows from the pod's address: who has the address of an earlier pod in its neighbour table reaches the new one.
func podHardwareAddr(a netip.Addr) net.HardwareAddr {
	ip := a.As4()
	return net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], ip[3]}
}

// setUp brings bridge, sysctls and rules to where they should be, whatever there is.
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
	return n.clearStrays(k)
}

func (n *Network) setUpBridge(k *kernel) error {
	if old, err := k.rt.LinkByName(n.bridge); err == nil {
		k.bridge = old.Attrs().Index // its own address is no conflict
	}
	if err := n.checkOverlap(k); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = n.bridge, n.cfg.MTU, hardwareAddr(n.bridge)
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
		return fmt.Errorf("there is a link %s of type %s where the pod network wants its bridge", n.bridge, link.Type())
	}
	k.bridge, k.mac = link.Attrs().Index, link.Attrs().HardwareAddr
	if link.Attrs().MTU != n.cfg.MTU {
		if err := k.rt.LinkSetMTU(link, n.cfg.MTU); err != nil {
			return fmt.Errorf("set mtu of bridge %s to %d: %w", n.bridge, n.cfg.MTU, err)
		}
	}
	if err := n.setUpAddress(k, link); err != nil {
		return err
	}
	if err := k.rt.LinkSetUp(link); err != nil {
		return fmt.Errorf("set bridge %s up: %w", n.bridge, err)
	}
	return nil
}

// setUpAddress gives the bridge the gateway's address and no other.
func (n *Network) setUpAddress(k *kernel, link netlink.Link) error {
	want := ipNet(netip.PrefixFrom(n.gateway, n.cfg.PodCIDR.Bits()))
	have, err := k.rt.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of bridge %s: %w", n.bridge, err)
	}
	for _, a := range have {
		if a.IPNet.String() == want.String() {
			return nil
		}
		if err := k.rt.AddrDel(link, &a); err != nil {
			return fmt.Errorf("take %s off bridge %s: %w", a.IPNet, n.bridge, err)
		}
	}
	if err := k.rt.AddrAdd(link, &netlink.Addr{IPNet: want}); err != nil {
		return fmt.Errorf("give bridge %s address %s: %w", n.bridge, want, err)
	}
	return nil
}

// checkOverlap refuses a pod range that another link of this machine uses: packets would go astray silently.
func (n *Network) checkOverlap(k *kernel) error {
	all, err := k.rt.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range all {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		if !ok || a.LinkIndex == k.bridge {
			continue
		}
		ones, _ := a.Mask.Size()
		if p := netip.PrefixFrom(ip, ones).Masked(); p.Overlaps(n.cfg.PodCIDR) && p.Bits() > 0 {
			return fmt.Errorf("pod CIDR %s overlaps with %s on this machine: choose another", n.cfg.PodCIDR, a.IPNet)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// connect makes the pod's link, or finds it as it should be.
func (n *Network) connect(k *kernel, l *lease) error {
	n.finishDelete(k, l.Link) // of this sandbox's last life
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
	err = n.plug(k, l, ns)
	if errors.Is(err, unix.EEXIST) {
		if n.connected(k, inside, l) {
			return nil
		}
		if err := k.remove(l.Link); err != nil {
			return err
		}
		err = n.plug(k, l, ns)
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

// plug makes the pair with one end on the bridge and the other in the pod, in one request.
func (n *Network) plug(k *kernel, l *lease, ns netns.NsHandle) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex, attrs.Flags = l.Link, n.cfg.MTU, k.bridge, net.FlagUp
	attrs.HardwareAddr = hardwareAddr(l.Link)
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: podLink, PeerNamespace: netlink.NsFd(int(ns)), PeerHardwareAddr: podHardwareAddr(l.Addrs[0]),
	}
	if err := k.rt.LinkAdd(veth); err != nil {
		return err
	}
	// A pod may reach itself through its own host port even where bridge-netfilter translates below IP.
	if err := k.rt.LinkSetHairpin(veth, true); err != nil {
		return fmt.Errorf("set hairpin: %w", err)
	}
	return nil
}

// configure sets up what the pod sees.
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
		p := ipNet(netip.PrefixFrom(a, n.cfg.PodCIDR.Bits()))
		if err := inside.AddrAdd(link, &netlink.Addr{IPNet: p}); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("give %s address %s: %w", podLink, p, err)
		}
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: n.gateway.AsSlice()}
	if err := inside.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add default route: %w", err)
	}
	return nil
}

// connected is true when the pod has its address already and its link is on our bridge.
func (n *Network) connected(k *kernel, inside *netlink.Handle, l *lease) bool {
	host, err := k.rt.LinkByName(l.Link)
	if err != nil || host.Attrs().MasterIndex != k.bridge {
		return false
	}
	pod, err := inside.LinkByName(podLink)
	if err != nil || pod.Attrs().ParentIndex != host.Attrs().Index || host.Attrs().ParentIndex != pod.Attrs().Index {
		return false
	}
	have, err := inside.AddrList(pod, netlink.FAMILY_V4)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(l.Addrs[0].AsSlice()) }) &&
		n.configure(inside, l) == nil
}

// remove deletes a link and with it its other end. The kernel waits meanwhile until nobody sees it any more: some 10 ms.
func (k *kernel) remove(name string) error {
	link, err := k.rt.LinkByName(name)
	if isNoLink(err) {
		return nil
	}
	if err == nil {
		err = k.rt.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

func isNoLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}

// clearStrays deletes links on our bridge that no lease has: an Attach or Detach was cut short.
func (n *Network) clearStrays(k *kernel) error {
	links, err := k.links()
	if err != nil {
		return err
	}
	n.mu.Lock()
	known := map[string]bool{}
	for _, l := range n.leases {
		known[l.Link] = true
	}
	n.mu.Unlock()
	for _, name := range links {
		if !known[name] {
			n.deleteLater(name)
		}
	}
	return nil
}

// links names what hangs on the bridge.
func (k *kernel) links() ([]string, error) {
	all, err := k.rt.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []string
	for _, l := range all {
		if l.Attrs().MasterIndex == k.bridge && l.Type() == "veth" {
			out = append(out, l.Attrs().Name)
		}
	}
	return out, nil
}

// deleteLater leaves a link to deleteLinks; its addresses are taken until it is gone.
func (n *Network) deleteLater(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	n.waiting = append(n.waiting, name)
	n.going[name] = addrs
	for _, a := range addrs {
		n.used[a] = "link " + name
	}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default: // it is awake
	}
}

// deleteLinks deletes what waits until ctx is done.
func (n *Network) deleteLinks(ctx context.Context, k *kernel) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
			n.deleteWaiting(k)
		}
	}
}

// deleteWaiting deletes the links that wait; false when there were none.
func (n *Network) deleteWaiting(k *kernel) bool {
	n.mu.Lock()
	names := n.waiting
	n.waiting = nil
	n.mu.Unlock()
	for _, name := range names {
		n.finishDelete(k, name)
	}
	return len(names) > 0
}

// finishDelete deletes one link unless that was done, and frees its addresses.
func (n *Network) finishDelete(k *kernel, name string) {
	n.mu.Lock()
	addrs, still := n.going[name]
	n.mu.Unlock()
	if !still {
		return
	}
	if err := k.remove(name); err != nil {
		n.log.Warn("link not deleted", "link", name, "error", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.going, name)
	for _, a := range addrs {
		if n.used[a] == "link "+name {
			delete(n.used, a)
		}
	}
}
