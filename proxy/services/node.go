// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
)

// Node holds the properties of the node that the rules depend on.
type Node struct {
	Name string
	Zone string // label topology.kubernetes.io/zone
	// PodCIDRs are the pod ranges of this node or of the cluster. Connections from other addresses to a cluster IP are
	// masqueraded. In a family without a range none is.
	PodCIDRs []netip.Prefix
	// PodGroup is the group of the links of this cluster's pods on this node. Links of other groups are those of other
	// clusters' pods, which may have the same cluster IPs; 0: they are not distinguished.
	PodGroup uint32
	// NodePortCIDRs are the node's addresses that serve node ports; none: all, 127.0.0.1 included.
	NodePortCIDRs []netip.Prefix
	// Addrs are this node's own addresses, as its Node object has them. Only this node serves them.
	Addrs []netip.Addr
	// ExternalIPs: spec.externalIPs are served. Others are the addresses of other nodes then, which these serve
	// themselves.
	ExternalIPs bool
	Others      map[netip.Addr]bool
	// Servers are the addresses of API servers. No Service gets them.
	Servers map[netip.AddrPort]bool
	// Reserved are the ports of this node's own programs, whether these listen at the moment or not, with their names.
	Reserved map[HostPort]string
	// Taken reports whether a process of this node listens on an address and port, which no Service may use then. nil:
	// none does.
	Taken func(addr netip.Addr, proto uint8, port uint16) bool
}

// HostPort is a port of a node.
type HostPort struct {
	Proto uint8
	Port  uint16
}

// owns reports whether an address is this node's.
func (n Node) owns(a netip.Addr) bool { return slices.Contains(n.Addrs, a) }

// userOf returns what uses an external address and port, so that no Service gets it; "": nothing.
func (n Node) userOf(at netip.AddrPort, proto uint8) string {
	switch by := n.Reserved[HostPort{proto, at.Port()}]; {
	case proto == protoTCP && n.Servers[at]:
		return "the API server"
	case by != "" && n.owns(at.Addr()):
		return by
	case n.Taken != nil && n.Taken(at.Addr(), proto, at.Port()):
		return "a process of this node"
	case slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(at.Addr()) }):
		return "the range of pods"
	}
	return ""
}

// userOfPort returns the program of this node that has a port, so that it is no node port; "": none. Other processes
// are not asked about: a connection that leaves by the port, or a listener on loopback, must not end a Service.
func (n Node) userOfPort(proto uint8, port uint16) string {
	return n.Reserved[HostPort{proto, port}]
}

// pods returns the pod ranges of a family.
func (n Node) pods(family int) []netip.Prefix { return ofFamily(n.PodCIDRs, family) }

func ofFamily(in []netip.Prefix, family int) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range in {
		if familyOf(p.Addr()) == family {
			out = append(out, p)
		}
	}
	return out
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}
