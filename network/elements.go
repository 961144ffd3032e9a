// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// elements are the elements for host ports in the sets of one family.
type elements struct{ any, one, hairpin []nftables.SetElement }

func (e *elements) add(more elements) {
	e.any = append(e.any, more.any...)
	e.one = append(e.one, more.one...)
	e.hairpin = append(e.hairpin, more.hairpin...)
}

// elementsOf returns the elements of one pod. Each part of a concatenation is padded to a multiple of four bytes.
func elementsOf(f family, l *lease) (e elements) {
	if len(l.keys) == 0 {
		return e
	}
	at := slices.IndexFunc(l.Addrs, func(a netip.Addr) bool { return a.Is4() == f.is4() })
	if at < 0 {
		return e
	}
	addr := l.Addrs[at].AsSlice()
	e.hairpin = append(e.hairpin, nftables.SetElement{Key: slices.Concat(addr, addr)})
	for i, k := range l.keys {
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

// deleteFlows deletes the conntrack entries of UDP flows to the pod's host ports, which would keep their old
// destination.
func deleteFlows(ports []PortMapping) {
	for _, p := range ports {
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
