// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
)

// Node is what the rules depend on beside Services.
type Node struct {
	Name string
	Zone string // label topology.kubernetes.io/zone
	// PodCIDRs are ranges whose addresses are pods: of this node, or of the cluster. What comes from elsewhere to a cluster IP is
	// masqueraded. Without one of a family, nothing of that family is.
	PodCIDRs []netip.Prefix
	// PodGroup is the group of the links to this cluster's pods on this node. Pods behind links of another one are another cluster's, whose
	// cluster IPs may be the same; 0: they are not told apart.
	PodGroup uint32
	// NodePortCIDRs are the node's addresses that serve node ports; none: all, 127.0.0.1 included.
	NodePortCIDRs []netip.Prefix
	// Taken says that something of this node listens on the port of the address, which no Service may take. nil: nothing does.
	Taken func(addr netip.Addr, proto uint8, port uint16) bool
}

// pods are the pod ranges of a family.
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
