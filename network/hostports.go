// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// elements are the elements for host ports in the sets of one family.
type elements struct{ any, one, hairpin []nftables.SetElement }

// elements returns the elements for all leases.
func (n *Network) elements(f family) elements {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out elements
	for _, l := range n.leases {
		e := elementsOf(f, l)
		out.any = append(out.any, e.any...)
		out.one = append(out.one, e.one...)
		out.hairpin = append(out.hairpin, e.hairpin...)
	}
	return out
}

// elementsOf returns the elements of one pod. Each part of a concatenation is padded to a multiple of four bytes.
func elementsOf(f family, l *lease) (e elements) {
	keys, err := keysOf(l.Ports)
	if err != nil || len(keys) == 0 {
		return e // keysOf has checked the lease
	}
	at := slices.IndexFunc(l.Addrs, func(a netip.Addr) bool { return a.Is4() == f.is4() })
	if at < 0 {
		return e
	}
	addr := l.Addrs[at].AsSlice()
	e.hairpin = append(e.hairpin, nftables.SetElement{Key: slices.Concat(addr, addr)})
	for i, k := range keys {
		val := slices.Concat(addr, portBytes(l.Ports[i].ContainerPort))
		key := append([]byte{k.proto, 0, 0, 0}, portBytes(k.port)...)
		switch {
		case !k.ip.IsValid():
			e.any = append(e.any, nftables.SetElement{Key: key, Val: val})
		case k.ip.Is4() == f.is4():
			e.one = append(e.one, nftables.SetElement{Key: slices.Concat(k.ip.AsSlice(), key), Val: val})
		}
	}
	return e
}

func portBytes(p uint16) []byte { return []byte{byte(p >> 8), byte(p), 0, 0} }

func (n *Network) openPorts(k *kernel, l *lease) error {
	err := n.changePorts(k, l, k.nft.SetAddElements)
	if err != nil {
		return fmt.Errorf("open host ports: %w", err)
	}
	k.deleteFlows(l)
	return nil
}

// closePorts deletes the pod's elements. Some may be missing if Attach failed.
func (n *Network) closePorts(k *kernel, l *lease) error {
	err := n.changePorts(k, l, k.nft.SetDeleteElements)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("close host ports: %w", err)
	}
	k.deleteFlows(l)
	return nil
}

func (n *Network) changePorts(k *kernel, l *lease, change func(*nftables.Set, []nftables.SetElement) error) error {
	if len(l.Ports) == 0 {
		return nil
	}
	k.nftMu.Lock()
	defer k.nftMu.Unlock()
	for _, f := range n.families {
		r := n.rules(f, false)
		e := elementsOf(f, l)
		for _, c := range []struct {
			set *nftables.Set
			els []nftables.SetElement
		}{{r.any, e.any}, {r.one, e.one}, {r.hairpin, e.hairpin}} {
			if len(c.els) == 0 {
				continue
			}
			if err := change(c.set, c.els); err != nil {
				return err
			}
		}
	}
	return k.nft.Flush()
}

// deleteFlows deletes the conntrack entries of UDP flows to the pod's host ports, which would keep their old
// destination.
func (k *kernel) deleteFlows(l *lease) {
	for _, p := range l.Ports {
		if !strings.EqualFold(p.Protocol, "udp") {
			continue
		}
		f := &netlink.ConntrackFilter{}
		err := errors.Join(f.AddProtocol(unix.IPPROTO_UDP), f.AddPort(netlink.ConntrackOrigDstPort, p.HostPort))
		if err == nil {
			// An error is ignored: the entries expire within minutes.
			_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f)
			_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET6, f)
		}
	}
}

func protoNumber(name string) (byte, error) {
	switch strings.ToUpper(name) {
	case "", "TCP":
		return unix.IPPROTO_TCP, nil
	case "UDP":
		return unix.IPPROTO_UDP, nil
	case "SCTP":
		return unix.IPPROTO_SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q: want TCP, UDP or SCTP", name)
}

func protoName(n byte) string {
	switch n {
	case unix.IPPROTO_UDP:
		return "UDP"
	case unix.IPPROTO_SCTP:
		return "SCTP"
	}
	return "TCP"
}
