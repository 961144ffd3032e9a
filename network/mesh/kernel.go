// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

// protocol is the rtnetlink protocol number of this package's routes.
const protocol netlink.RouteProtocol = 75

// Kernel applies plans by netlink.
type Kernel struct {
	id   string // of the cluster on this machine
	name string // of the tunnel's link
	vni  int
	vtep net.HardwareAddr
	port int
	rt   *netlink.Handle
	wg   wireGuard
	seal *seal
}

// Open returns a Kernel for the cluster with that id on this machine. All machines of the cluster must use the same
// network, and for VXLAN the same port. encryption is zero if plans are not encrypted.
func Open(id, network, node string, port int, encryption Encryption) (*Kernel, error) {
	rt, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	seal, err := openSeal(id, LinkName(id))
	if err != nil {
		rt.Close()
		return nil, err
	}
	sum := sha256.Sum256([]byte(network))
	return &Kernel{
		id:   id,
		name: LinkName(id),
		vni:  int(binary.BigEndian.Uint32(sum[:])>>8)&0xffffff | 0x1000,
		vtep: VTEP(network, node),
		port: port,
		rt:   rt,
		wg:   wireGuard{Encryption: encryption},
		seal: seal,
	}, nil
}

// LinkName returns the name of the tunnel's link of the cluster with that id on this machine.
func LinkName(id string) string { return "kx-" + id }

// VTEP returns the MAC address of a node's VXLAN tunnel endpoint. It does not change with a restart.
func VTEP(network, node string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(network + "/" + node))
	return net.HardwareAddr{0x0e, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// metric identifies the cluster's routes. It is high, so that an administrator's routes have precedence.
func (k *Kernel) metric() int {
	sum := sha256.Sum256([]byte(k.id))
	return int(binary.BigEndian.Uint32(sum[:])&0xffffff) | 0x4b000000
}

// Close closes the sockets. Routes and tunnel stay, except for WireGuard in this process, after which only the
// blackhole routes stay.
func (k *Kernel) Close() {
	k.wg.close()
	k.seal.close()
	k.rt.Close()
}

// Links returns the links by which other machines may be reachable.
func (k *Kernel) Links() ([]Link, error) {
	links, err := linux.Dump(k.rt.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := linux.Dump(func() ([]netlink.Addr, error) { return k.rt.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	by := map[int][]netip.Prefix{}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || ip.IsLinkLocalUnicast() {
			continue
		}
		ones, _ := a.Mask.Size()
		by[a.LinkIndex] = append(by[a.LinkIndex], netip.PrefixFrom(ip.Unmap(), ones))
	}
	var out []Link
	for _, l := range links {
		a := l.Attrs()
		if len(by[a.Index]) > 0 && a.Flags&net.FlagUp != 0 && !strings.HasPrefix(a.Name, "kl-") &&
			!strings.HasPrefix(a.Name, "kx-") {
			out = append(out, Link{
				Name:  a.Name,
				Index: a.Index,
				MTU:   a.MTU,
				Addrs: by[a.Index],
			})
		}
	}
	return out, nil
}

// Apply applies the plan. An error with one machine does not affect the others.
func (k *Kernel) Apply(plan Plan) error {
	if plan.Encrypted {
		return k.applyEncrypted(plan)
	}
	tunnel, err := k.tunnel(plan)
	if err != nil {
		return err
	}
	var errs []error
	if tunnel != 0 {
		errs = append(errs, k.setNeighbours(tunnel, plan.Peers))
	}
	return errors.Join(append(errs, k.route(tunnel, plan.Routes, nil), k.seal.remove())...)
}

// applyEncrypted allows no unencrypted packets, even if it fails.
func (k *Kernel) applyEncrypted(p Plan) error {
	if err := errors.Join(k.block(p.Blocked), k.seal.apply(p.Own, p.Sealed)); err != nil {
		return err
	}
	tunnel, err := k.encrypted(p)
	if tunnel == 0 {
		p.Routes = nil
	}
	return errors.Join(err, k.route(tunnel, p.Routes, p.Blocked))
}

// Purge removes everything that Apply made.
func (k *Kernel) Purge() error {
	return errors.Join(k.route(0, nil, nil), k.removeTunnel(), k.seal.remove())
}

// tunnel makes the link, or replaces it if it does not match the plan, and returns its index; 0: none.
func (k *Kernel) tunnel(plan Plan) (int, error) {
	if !plan.Local.IsValid() {
		return 0, k.removeTunnel()
	}
	mtu := plan.Outer - plan.Overhead()
	have, err := k.rt.LinkByName(k.name)
	if err == nil && k.isTunnel(have, plan.Local) {
		if have.Attrs().MTU != mtu {
			if err := k.rt.LinkSetMTU(have, mtu); err != nil {
				return 0, fmt.Errorf("set mtu of tunnel %s to %d: %w", k.name, mtu, err)
			}
		}
		return have.Attrs().Index, k.setUp(have)
	}
	if err == nil {
		if err := k.removeTunnel(); err != nil {
			return 0, err
		}
	}
	return k.makeTunnel(plan.Local, mtu)
}

// isTunnel reports whether a link is the VXLAN that makeTunnel would make, whatever its MTU.
func (k *Kernel) isTunnel(link netlink.Link, local netip.Addr) bool {
	v, ok := link.(*netlink.Vxlan)
	return ok && v.VxlanId == k.vni && v.Port == k.port && v.SrcAddr.Equal(local.AsSlice()) &&
		v.Attrs().HardwareAddr.String() == k.vtep.String()
}

func (k *Kernel) makeTunnel(local netip.Addr, mtu int) (index int, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = k.name
	attrs.MTU = mtu
	attrs.HardwareAddr = k.vtep
	link := &netlink.Vxlan{
		LinkAttrs: attrs,
		VxlanId:   k.vni,
		SrcAddr:   local.AsSlice(),
		Port:      k.port,
		Learning:  false,
	}
	err = k.rt.LinkAdd(link)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return 0, errors.New("this kernel has no VXLAN (CONFIG_VXLAN), which pods of machines in other subnets need")
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EADDRINUSE):
		return 0, fmt.Errorf("create tunnel %s: another VXLAN of this machine has port %d and number %d: %w", k.name,
			k.port, k.vni, err)
	case err != nil:
		return 0, fmt.Errorf("create tunnel %s: %w", k.name, err)
	}
	return link.Attrs().Index, k.setUp(link)
}

// setUp sets the link up and enables forwarding. rp_filter is loose (2), because the tunnel's peers are known.
func (k *Kernel) setUp(link netlink.Link) error {
	for path, value := range map[string]string{
		"ipv4/conf/%s/forwarding":       "1",
		"ipv4/conf/%s/rp_filter":        "2",
		"ipv6/conf/%s/force_forwarding": "1",
		"ipv6/conf/%s/accept_ra":        "0",
	} {
		path = "/proc/sys/net/" + fmt.Sprintf(path, k.name)
		have, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(have)) == value {
			continue // the kernel does not have the setting, or no IPv6
		}
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set %s: %w", path, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := k.rt.LinkSetUp(link); err != nil {
		return fmt.Errorf("set tunnel %s up: %w", k.name, err)
	}
	return nil
}

func (k *Kernel) removeTunnel() error {
	k.wg.close()
	link, err := k.rt.LinkByName(k.name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil
	}
	if err == nil {
		err = k.rt.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete tunnel %s: %w", k.name, err)
	}
	return nil
}

// neighKey identifies an entry of a neighbour table.
type neighKey struct{ mac, ip string }

// neighboursOf returns the tunnel's forwarding and neighbour entries: machines by MAC address, and their addresses in
// the tunnel.
func neighboursOf(tunnel int, peers []Peer) map[neighKey]netlink.Neigh {
	out := map[neighKey]netlink.Neigh{}
	for _, peer := range peers {
		out[neighKey{peer.VTEP.String(), peer.At.String()}] = netlink.Neigh{
			LinkIndex:    tunnel,
			Family:       unix.AF_BRIDGE,
			Flags:        netlink.NTF_SELF,
			State:        netlink.NUD_PERMANENT,
			IP:           peer.At.AsSlice(),
			HardwareAddr: peer.VTEP,
		}
		for _, a := range peer.Inner {
			out[neighKey{peer.VTEP.String(), a.String()}] = netlink.Neigh{
				LinkIndex:    tunnel,
				State:        netlink.NUD_PERMANENT,
				IP:           a.AsSlice(),
				HardwareAddr: peer.VTEP,
			}
		}
	}
	return out
}

// setNeighbours sets the tunnel's entries to those of the peers.
func (k *Kernel) setNeighbours(tunnel int, peers []Peer) error {
	missing := neighboursOf(tunnel, peers)
	var errs []error
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		errs = append(errs, k.dropNeighbours(tunnel, family, missing))
	}
	for _, n := range missing {
		set := k.rt.NeighSet
		if err := set(&n); err != nil {
			errs = append(errs, fmt.Errorf("add neighbour %s of %s: %w", n.IP, k.name, err))
		}
	}
	return errors.Join(errs...)
}

// dropNeighbours deletes the tunnel's entries of a family that are not wanted, and takes those that are there out of
// wanted.
func (k *Kernel) dropNeighbours(tunnel, family int, wanted map[neighKey]netlink.Neigh) error {
	have, err := linux.Dump(func() ([]netlink.Neigh, error) { return k.rt.NeighList(tunnel, family) })
	if err != nil {
		return fmt.Errorf("list neighbours of %s: %w", k.name, err)
	}
	var errs []error
	for _, neigh := range have {
		ip, ok := netip.AddrFromSlice(neigh.IP)
		key := neighKey{neigh.HardwareAddr.String(), ip.Unmap().String()}
		if _, keep := wanted[key]; keep && ok {
			delete(wanted, key)
			continue
		}
		// The kernel's own entries of IPv4 and IPv6, which it has learned, are none of ours.
		if family != unix.AF_BRIDGE && neigh.State != netlink.NUD_PERMANENT || neigh.HardwareAddr == nil || !ok {
			continue
		}
		neigh.LinkIndex = tunnel
		if family == unix.AF_BRIDGE {
			neigh.Family = unix.AF_BRIDGE
			neigh.Flags = netlink.NTF_SELF
		}
		if err := k.rt.NeighDel(&neigh); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("delete neighbour %s of %s: %w", neigh.IP, k.name, err))
		}
	}
	return errors.Join(errs...)
}

// Watch subscribes to changes of links and addresses in the calling thread's network namespace. follow calls changed
// for each, except those of pods' links and of the existing tunnel, until done is closed.
func (k *Kernel) Watch(done <-chan struct{}, changed func()) (follow func(), err error) {
	links := make(chan netlink.LinkUpdate)
	addrs := make(chan netlink.AddrUpdate)
	if err := netlink.LinkSubscribe(links, done); err != nil {
		return nil, fmt.Errorf("watch links: %w", err)
	}
	if err := netlink.AddrSubscribe(addrs, done); err != nil {
		return nil, fmt.Errorf("watch addresses: %w", err)
	}
	return func() {
		for links != nil || addrs != nil {
			select {
			case u, ok := <-links:
				if !ok {
					links = nil
				} else if name := u.Attrs().Name; !strings.HasPrefix(name, "kv") &&
					(name != k.name || u.Header.Type == unix.RTM_DELLINK) {
					changed()
				}
			case _, ok := <-addrs:
				if !ok {
					addrs = nil
				} else {
					changed()
				}
			}
		}
	}, nil
}
