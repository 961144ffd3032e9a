// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// IPs are this node's addresses, one per family of the pod network (both families while that is unknown): the
// source address of the default route, else the first address of a link, else the pods' gateway. towards is an address
// in the network of the other machines, if one is known.
func IPs(podCIDRs []netip.Prefix, towards netip.Addr) []netip.Addr {
	families := []bool{true, false} // true: IPv4
	if len(podCIDRs) > 0 {
		families = families[:0]
		for _, p := range podCIDRs {
			families = append(families, p.Addr().Is4())
		}
	}
	var out []netip.Addr
	for _, four := range families {
		if ip := sourceAddr(four, towards); ip.IsValid() {
			out = append(out, ip)
		}
	}
	for _, four := range families {
		if len(out) > 0 {
			break
		}
		if ip := linkAddr(four); ip.IsValid() {
			out = append(out, ip)
		}
	}
	if len(out) == 0 && len(podCIDRs) > 0 {
		out = append(out, podCIDRs[0].Masked().Addr().Next())
	}
	return out
}

// sourceAddr is the local address for connections to the API server on another machine, if it has that family, else to
// the Internet.
func sourceAddr(four bool, server netip.Addr) netip.Addr {
	network := "udp4"
	to := "192.0.2.1:9"
	if !four {
		network = "udp6"
		to = "[2001:db8::1]:9"
	}
	if server.IsValid() && server.Is4() == four {
		to = netip.AddrPortFrom(server, 9).String()
	}
	// Connecting a UDP socket sends nothing: the kernel only chooses the source address.
	conn, err := (&net.Dialer{}).DialContext(context.Background(), network, to)
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = conn.Close() }()
	if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		if ip := a.AddrPort().Addr().Unmap(); usableNodeIP(ip) {
			return ip
		}
	}
	return netip.Addr{}
}

// linkAddr is the first address on the machine's links, without those of pod networks.
func linkAddr(four bool) netip.Addr {
	links, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}
	}
	for _, l := range links {
		if l.Flags&net.FlagUp == 0 || slices.ContainsFunc([]string{"kl-", "kx-", "kv"}, func(p string) bool {
			return strings.HasPrefix(l.Name, p)
		}) {
			continue
		}
		addrs, err := l.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() == four && usableNodeIP(p.Addr()) {
				return p.Addr()
			}
		}
	}
	return netip.Addr{}
}

// usableNodeIP reports whether ip can be a node's address. A link-local one cannot: the API server never calls it.
func usableNodeIP(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsLinkLocalUnicast()
}
