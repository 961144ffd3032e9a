// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// SetCluster sets the destinations to which pods send with their own addresses: the pod ranges of all nodes and the
// nodes' addresses. Packets to other destinations are masqueraded. This node's range is always included. It may be
// called at any time.
func (n *Network) SetCluster(ranges []netip.Prefix) error {
	n.mu.Lock()
	same := slices.Equal(n.cluster, ranges)
	n.cluster = slices.Clone(ranges)
	k := n.kernel
	n.mu.Unlock()
	if k == nil || same {
		return nil // Run writes it
	}
	return n.writeCluster(k)
}

// writeCluster replaces the elements of the set in one transaction.
func (n *Network) writeCluster(k *kernel) error {
	k.nftMu.Lock()
	defer k.nftMu.Unlock()
	for _, f := range n.families {
		set := n.rules(f, false).cluster
		k.nft.FlushSet(set)
		if err := k.nft.SetAddElements(set, n.clusterElements(f)); err != nil {
			return fmt.Errorf("write the cluster's addresses: %w", err)
		}
	}
	if err := k.nft.Flush(); err != nil {
		return fmt.Errorf("write the cluster's addresses: %w", err)
	}
	return nil
}

// clusterElements returns the intervals of one family, sorted and disjoint, as the kernel requires.
func (n *Network) clusterElements(f family) []nftables.SetElement {
	n.mu.Lock()
	ranges := append(slices.Clone(n.cluster), f.pods)
	n.mu.Unlock()
	var out []nftables.SetElement
	for _, p := range disjoint(ranges, f.is4()) {
		out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		if end := after(p); end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// disjoint returns the ranges of one family, sorted, without those that are within another.
func disjoint(ranges []netip.Prefix, four bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ranges {
		if p.IsValid() && p.Addr().Is4() == four {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	kept := out[:0]
	for _, p := range out {
		if len(kept) == 0 || !kept[len(kept)-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

// after returns the first address after the range; the zero address after the last one.
func after(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last.Next()
}
