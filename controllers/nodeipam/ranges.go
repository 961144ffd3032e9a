// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
)

// maxBits is the maximum difference of the prefix lengths of a node's range and the cluster CIDR: 65,536 nodes.
const maxBits = 16

// errNoFreeRange means that no range is free.
var errNoFreeRange = errors.New("every range is in use")

// ranges is a cluster CIDR divided into node ranges of one size. The users of each are counted, because nodes may have
// set ranges of other sizes, or the same ones.
type ranges struct {
	cluster netip.Prefix
	bits    int // of a node's range
	used    []uint16
	next    int // where the search continues, so that a range is not reused at once
}

func newRanges(cluster netip.Prefix, bits int) (*ranges, error) {
	cluster = cluster.Masked()
	switch {
	case bits < cluster.Bits() || bits > cluster.Addr().BitLen():
		return nil, fmt.Errorf("a node's range of /%d is no part of the cluster's range %s", bits, cluster)
	case bits-cluster.Bits() > maxBits:
		return nil, fmt.Errorf("a node's range of /%d makes more than %d of the cluster's range %s", bits, 1<<maxBits,
			cluster)
	}
	return &ranges{cluster: cluster, bits: bits, used: make([]uint16, 1<<(bits-cluster.Bits()))}, nil
}

// allocateNext allocates a free range.
func (r *ranges) allocateNext() (netip.Prefix, error) {
	for i := range r.used {
		at := (r.next + i) % len(r.used)
		if r.used[at] == 0 {
			r.used[at]++
			r.next = (at + 1) % len(r.used)
			return r.cidrAt(at), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w of %s", errNoFreeRange, r.cluster)
}

// cidrAt is node range i.
func (r *ranges) cidrAt(i int) netip.Prefix {
	base := new(big.Int).SetBytes(r.cluster.Addr().AsSlice())
	step := new(big.Int).Lsh(big.NewInt(int64(i)), uint(r.cluster.Addr().BitLen()-r.bits)) // checked by newRanges
	a, _ := netip.AddrFromSlice(base.Add(base, step).FillBytes(make([]byte, r.cluster.Addr().BitLen()/8)))
	return netip.PrefixFrom(a, r.bits)
}

// indexRange are the indexes of the node ranges that p overlaps: from first to before end.
func (r *ranges) indexRange(p netip.Prefix) (first, end int) {
	switch p = p.Masked(); {
	case !p.Overlaps(r.cluster):
		return 0, 0
	case p.Bits() <= r.cluster.Bits():
		return 0, len(r.used)
	}
	distance := new(big.Int).Sub(new(big.Int).SetBytes(p.Addr().AsSlice()),
		new(big.Int).SetBytes(r.cluster.Addr().AsSlice()))
	first = int(distance.Rsh(distance, uint(p.Addr().BitLen()-r.bits)).Int64()) // checked by newRanges
	return first, first + 1<<max(0, r.bits-p.Bits())
}

// occupy counts a user of p; it reports whether another one overlaps it.
func (r *ranges) occupy(p netip.Prefix) (shared bool) {
	first, end := r.indexRange(p)
	for i := first; i < end; i++ {
		shared = shared || r.used[i] > 0
		r.used[i]++
	}
	return shared
}

// release undoes occupy or allocateNext.
func (r *ranges) release(p netip.Prefix) {
	first, end := r.indexRange(p)
	for i := first; i < end; i++ {
		if r.used[i] > 0 {
			r.used[i]--
		}
	}
}
