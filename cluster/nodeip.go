// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// nodeIPs are the addresses this node is known by, in the pod network's families (both while that is not known): for each the one the
// default route would use. A machine without such a route is known by the first address of its links, one without links by the pods'
// gateway.
func nodeIPs(cfg Config) []netip.Addr {
	families := []bool{true, false} // IPv4?
	if len(cfg.PodCIDRs) > 0 {
		families = families[:0]
		for _, p := range cfg.PodCIDRs {
			families = append(families, p.Addr().Is4())
		}
	}
	towards := cfg.serverAt
	if bind := cfg.Listen.bind(); !towards.IsValid() && !bind.IsLoopback() && !bind.IsUnspecified() {
		towards = bind // other machines know this one by it
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
	if len(out) == 0 && len(cfg.PodCIDRs) > 0 {
		out = append(out, cfg.PodCIDRs[0].Masked().Addr().Next())
	}
	return out
}

// sourceAddr is the address from which this machine would send to the API server on another machine, if that is of the family, else to the
// world.
func sourceAddr(four bool, server netip.Addr) netip.Addr {
	network, to := "udp4", "192.0.2.1:9"
	if !four {
		network, to = "udp6", "[2001:db8::1]:9"
	}
	if server.IsValid() && server.Is4() == four {
		to = netip.AddrPortFrom(server, 9).String()
	}
	// Connecting a UDP socket sends nothing; it asks the kernel which source address it would use.
	conn, err := (&net.Dialer{}).DialContext(context.Background(), network, to)
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = conn.Close() }()
	if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		if ip := a.AddrPort().Addr().Unmap(); mayBeNodes(ip) {
			return ip
		}
	}
	return netip.Addr{}
}

// linkAddr is the first address of the machine's links, but for those of pod networks.
func linkAddr(four bool) netip.Addr {
	links, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}
	}
	for _, l := range links {
		if l.Flags&net.FlagUp == 0 || slices.ContainsFunc([]string{"kl-", "kx-", "kv"}, func(p string) bool { return strings.HasPrefix(l.Name, p) }) {
			continue
		}
		addrs, err := l.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() == four && mayBeNodes(p.Addr()) {
				return p.Addr()
			}
		}
	}
	return netip.Addr{}
}

// mayBeNodes: a link-local one is no node's, and the API server calls none.
func mayBeNodes(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsLinkLocalUnicast()
}

// netIPs are the addresses in net's words.
func netIPs(addrs []netip.Addr) []net.IP {
	var out []net.IP
	for _, a := range addrs {
		out = append(out, a.AsSlice())
	}
	return out
}
