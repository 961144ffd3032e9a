// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
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
	// Taken reports whether a process of this node listens on an address and port, which no Service may use then. nil:
	// none does.
	Taken func(addr netip.Addr, proto uint8, port uint16) bool
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
