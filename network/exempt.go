// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
)

// exempt are the destinations without masquerading; see Network.SetCluster.
type exempt struct {
	mu     sync.Mutex
	ranges []netip.Prefix
}

func (e *exempt) set(ranges []netip.Prefix) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ranges = slices.Clone(ranges)
}

// get returns the ranges, which do not change.
func (e *exempt) get() []netip.Prefix {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ranges
}

// intervals returns the intervals of one family with this node's range, sorted and disjoint, as the kernel requires.
func intervals(ranges []netip.Prefix, f family) []nftables.SetElement {
	var out []nftables.SetElement
	for _, p := range disjoint(append(slices.Clip(ranges), f.pods), f.is4()) {
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
