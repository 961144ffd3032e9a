// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"keelson/lib/linux"
)

// Key is a WireGuard key, private or public.
type Key = wgtypes.Key

// Encryption is this machine's WireGuard configuration.
type Encryption struct {
	// Private is its private key.
	Private Key
	// KeepAlive is the persistent keepalive interval for all peers, for NAT on the path; 0: off.
	KeepAlive time.Duration
}

// wireGuard is the state of the encrypted tunnel. The zero value has none.
type wireGuard struct {
	Encryption

	end        end          // nil: not opened yet
	configured map[Key]Peer // peers as last configured
}

// end is this machine's end of the encrypted tunnel: in the kernel, or in this process if the kernel has no WireGuard.
type end interface {
	// configure applies the set fields of a configuration.
	configure(wgtypes.Config) error
	// peers returns its peers, with the addresses from which they were last received.
	peers() (map[Key]*net.UDPAddr, error)
	// serves reports whether it works on the link with that index and MTU.
	serves(index, mtu int) bool
	// close releases what belongs to this process.
	close()
}

func (w *wireGuard) close() {
	if w.end != nil {
		w.end.close()
	}
	w.end = nil
	w.configured = nil
}

// Begin deletes unencrypted routes of an earlier run, and blocks unencrypted packets to and from the ranges. From then
// on plans must be encrypted. own are this machine's pod ranges.
func (k *Kernel) Begin(own, ranges []netip.Prefix) error {
	have, err := k.ownRoutes()
	if err != nil {
		return err
	}
	tunnel := -1
	if l, err := k.rt.LinkByName(k.name); err == nil && l.Type() == "wireguard" {
		tunnel = l.Attrs().Index
	}
	blocked := slices.Clone(ranges)
	var keep []Route
	for _, r := range have {
		dst, ok := prefixOf(r.Dst)
		if !ok {
			continue
		}
		if !slices.Contains(blocked, dst) {
			blocked = append(blocked, dst)
		}
		if r.Type == unix.RTN_UNICAST && r.LinkIndex == tunnel {
			src, _ := netip.AddrFromSlice(r.Src)
			keep = append(keep, Route{Dst: dst, Link: tunnel, Src: src.Unmap()})
		}
	}
	links, err := k.Links()
	return errors.Join(err, k.route(0, keep, blocked), k.seal.apply(own, apartFrom(links, slices.Concat(own, blocked))))
}

// InProcess reports whether this process encrypts, because the kernel has no WireGuard.
func (k *Kernel) InProcess() bool {
	_, ok := k.wg.end.(*userEnd)
	return ok
}

// encrypted makes the link and configures the peers.
func (k *Kernel) encrypted(p Plan) (int, error) {
	link, err := k.encryptedLink(max(p.Outer-p.Overhead(), 0))
	if err != nil {
		return 0, err
	}
	greet, err := k.setPeers(p.Peers)
	if err == nil {
		err = k.setAddresses(link, p.Inner)
	}
	if err == nil {
		err = k.setUp(link)
	}
	if err == nil && len(greet) > 0 {
		err = k.wg.end.configure(wgtypes.Config{Peers: greet})
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = k.portTaken()
	}
	if err != nil {
		k.wg.close() // the next call configures everything again
		return 0, fmt.Errorf("set up WireGuard: %w", err)
	}
	return link.Attrs().Index, nil
}

func (k *Kernel) portTaken() error {
	return fmt.Errorf("WireGuard's UDP port %d is in use on this machine: choose another --tunnel-port", k.port)
}

// unknownMTU is the minimum MTU of IPv6 links, used while the MTU is unknown.
const unknownMTU = 1280

// encryptedLink returns the link, and replaces one that does not work. mtu 0 means unknown.
func (k *Kernel) encryptedLink(mtu int) (netlink.Link, error) {
	have, err := k.rt.LinkByName(k.name)
	if err == nil && k.wg.end == nil && have.Type() == "wireguard" {
		k.wg.end = kernelEnd{k.name} // the link of an earlier run
	}
	if err == nil && k.wg.end != nil && k.wg.end.serves(have.Attrs().Index, mtu) {
		if mtu != 0 && have.Attrs().MTU != mtu {
			err = k.rt.LinkSetMTU(have, mtu)
		}
		if err != nil {
			return nil, fmt.Errorf("set mtu of tunnel %s to %d: %w", k.name, mtu, err)
		}
		return have, nil
	}
	if err := k.removeTunnel(); err != nil {
		return nil, err
	}
	return k.makeEncrypted(cmp.Or(mtu, unknownMTU))
}

// makeEncrypted makes the link and this machine's end: in the kernel, or in this process if the kernel has none.
func (k *Kernel) makeEncrypted(mtu int) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = k.name
	attrs.MTU = mtu
	switch err := k.rt.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); {
	case err == nil:
		k.wg.end = kernelEnd{k.name}
	case errors.Is(err, unix.EOPNOTSUPP):
		e, err := openUserEnd(k.name, mtu, k.wg.Private, k.port)
		if errors.Is(err, unix.EADDRINUSE) {
			err = k.portTaken()
		}
		if err != nil {
			return nil, err
		}
		k.wg.end = e
	default:
		return nil, fmt.Errorf("create tunnel %s: %w", k.name, err)
	}
	link, err := k.rt.LinkByName(k.name)
	if err != nil {
		return nil, fmt.Errorf("find tunnel %s: %w", k.name, err)
	}
	if e, ok := k.wg.end.(*userEnd); ok {
		e.index = link.Attrs().Index
		e.mtu = mtu
		return link, k.rt.LinkSetMTU(link, mtu)
	}
	return link, nil
}

// setPeers configures the peers of the plan. It returns a configuration that makes handshakes with new peers, for use
// once the link is up: a peer that has an old session with this machine would otherwise use that for up to 15 s, and
// no peer reaches one behind NAT until it makes a handshake itself.
func (k *Kernel) setPeers(want []Peer) (greet []wgtypes.PeerConfig, err error) {
	var config wgtypes.Config
	known, err := k.wg.end.peers()
	if err != nil {
		return nil, err
	}
	if k.wg.configured == nil {
		config.PrivateKey = &k.wg.Private
		config.ListenPort = &k.port
	}
	config.Peers = changes(k.wg.configured, known, want, k.wg.KeepAlive)
	if config.PrivateKey == nil && len(config.Peers) == 0 {
		return nil, nil
	}
	if err := k.wg.end.configure(config); err != nil {
		return nil, err
	}
	for _, p := range want {
		had, old := k.wg.configured[p.Key]
		if _, there := known[p.Key]; !old && !there || old && had.Start != p.Start {
			greet = append(greet,
				wgtypes.PeerConfig{PublicKey: p.Key, UpdateOnly: true, PersistentKeepaliveInterval: new(time.Second)},
				wgtypes.PeerConfig{
					PublicKey:                   p.Key,
					UpdateOnly:                  true,
					PersistentKeepaliveInterval: new(k.wg.KeepAlive),
				})
		}
	}
	k.wg.configured = map[Key]Peer{}
	for _, p := range want {
		k.wg.configured[p.Key] = p
	}
	return greet, nil
}

// changes returns the configuration changes from the configured peers to the planned ones (want). known are the
// peers that the end has, and where they are. Unchanged peers are not configured again, because their endpoint may have
// roamed. A peer that has started again loses its session, which it does not have any more, and stays where it is.
func changes(
	configured map[Key]Peer, known map[Key]*net.UDPAddr, want []Peer, keepAlive time.Duration,
) []wgtypes.PeerConfig {
	var out []wgtypes.PeerConfig
	for _, key := range slices.SortedFunc(maps.Keys(known), func(a, b Key) int { return bytes.Compare(a[:], b[:]) }) {
		if !slices.ContainsFunc(want, func(p Peer) bool { return p.Key == key }) {
			out = append(out, wgtypes.PeerConfig{PublicKey: key, Remove: true})
		}
	}
	for _, p := range want {
		was, ok := configured[p.Key]
		if ok && reflect.DeepEqual(was, p) {
			continue
		}
		at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.At, p.Port))
		if ok && was.Start != p.Start {
			out = append(out, wgtypes.PeerConfig{PublicKey: p.Key, Remove: true})
			if was.At == p.At && was.Port == p.Port && known[p.Key] != nil {
				at = known[p.Key]
			}
		}
		c := wgtypes.PeerConfig{
			PublicKey:                   p.Key,
			ReplaceAllowedIPs:           true,
			Endpoint:                    at,
			PersistentKeepaliveInterval: &keepAlive,
		}
		for _, r := range p.Pods {
			c.AllowedIPs = append(c.AllowedIPs, *ipNet(r))
		}
		out = append(out, c)
	}
	return out
}

// setAddresses sets the link's addresses, which are also the source of masqueraded packets, so that replies come back
// by the tunnel.
func (k *Kernel) setAddresses(link netlink.Link, want []netip.Addr) error {
	have, err := linux.Dump(func() ([]netlink.Addr, error) { return k.rt.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of tunnel %s: %w", k.name, err)
	}
	missing := map[netip.Addr]bool{}
	for _, a := range want {
		missing[a] = true
	}
	for _, a := range have {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok || ip.IsLinkLocalUnicast() {
			continue
		}
		if missing[ip] {
			delete(missing, ip)
			continue
		}
		if err := k.rt.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("take address %s from tunnel %s: %w", ip, k.name, err)
		}
	}
	for ip := range missing {
		a := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, ip.BitLen()))}
		if ip.Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := k.rt.AddrAdd(link, a); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("give tunnel %s the address %s: %w", k.name, ip, err)
		}
	}
	return nil
}
