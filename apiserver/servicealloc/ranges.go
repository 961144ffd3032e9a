// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// defaultServiceCIDR is the name of the ServiceCIDR with the server's own ranges.
const defaultServiceCIDR = "kubernetes"

// staticIPs is the maximum number of addresses at the low end of a range that automatic allocation uses last
// (KEP-3070).
const staticIPs = 256

// addressRange is a ServiceCIDR.
type addressRange struct {
	prefixes []netip.Prefix
	ready    bool // new addresses may be allocated
}

// addressRanges are the ranges of Services' addresses. Allocator.mu guards it.
type addressRanges struct {
	own    []netip.Prefix          // of the ServiceCIDR "kubernetes": one per family; never changes
	byName map[string]addressRange // by the name of the ServiceCIDR
}

func newAddressRanges(own []netip.Prefix) addressRanges {
	ranges := addressRanges{byName: map[string]addressRange{}}
	for _, p := range own {
		ranges.own = append(ranges.own, p.Masked())
	}
	ranges.reset()
	return ranges
}

// reset sets the ServiceCIDR "kubernetes" to the server's own ranges.
func (r *addressRanges) reset() {
	r.byName[defaultServiceCIDR] = addressRange{prefixes: r.own, ready: true}
}

// families are the cluster's IP families, the default one first.
func (r *addressRanges) families() []corev1.IPFamily {
	out := make([]corev1.IPFamily, len(r.own))
	for i, p := range r.own {
		out[i] = familyOf(p.Addr())
	}
	return out
}

// SetRange adds or updates a ServiceCIDR. No addresses are allocated from one that is being deleted or not ready.
func (a *Allocator) SetRange(obj runtime.Object) {
	serviceCIDR, ok := obj.(*networkingv1.ServiceCIDR)
	if !ok {
		return
	}
	r := addressRange{ready: serviceCIDR.DeletionTimestamp == nil}
	if cond := meta.FindStatusCondition(serviceCIDR.Status.Conditions,
		networkingv1.ServiceCIDRConditionReady); cond != nil {
		r.ready = r.ready && cond.Status == metav1.ConditionTrue
	}
	for _, text := range serviceCIDR.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			r.prefixes = append(r.prefixes, p.Masked())
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ranges.byName[serviceCIDR.Name] = r
	a.recheckAllLocked()
}

// RemoveRange removes a deleted ServiceCIDR.
func (a *Allocator) RemoveRange(obj runtime.Object) {
	c, ok := obj.(*networkingv1.ServiceCIDR)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ranges.byName, c.Name)
	if c.Name == defaultServiceCIDR {
		a.ranges.reset()
	}
	a.recheckAllLocked()
}

// CheckRanges requires one range, or one per family.
func CheckRanges(own []netip.Prefix) error {
	const least = 3 // address bits
	switch {
	case len(own) == 0 || len(own) > 2:
		return fmt.Errorf("%d ranges of service addresses: one is needed, or one of each family", len(own))
	case len(own) == 2 && own[0].Addr().Is4() == own[1].Addr().Is4():
		return fmt.Errorf("the ranges of service addresses %s and %s are of the same IP family", own[0], own[1])
	}
	for _, p := range own {
		switch {
		case p.Addr().BitLen()-p.Bits() < least:
			return fmt.Errorf("the service cluster IP range must be at least %d IP addresses: %s", 1<<least, p)
		case p.Addr().Is6() && p.Bits() < 64:
			return fmt.Errorf("the range of service addresses %s is too large: 64 bits must be its own at least", p)
		}
	}
	return nil
}

// allocatable reports whether ip is in p and can be a Service's address.
func allocatable(p netip.Prefix, ip netip.Addr) bool {
	return p.Contains(ip) && ip != p.Addr() && (!ip.Is4() || ip != lastAddress(p))
}

// ready reports whether a ready range contains ip.
func (r *addressRanges) ready(ip netip.Addr) bool {
	for _, one := range r.byName {
		if one.ready && slices.ContainsFunc(one.prefixes, func(p netip.Prefix) bool { return allocatable(p, ip) }) {
			return true
		}
	}
	return false
}

// contain reports whether any range, ready or not, contains ip.
func (r *addressRanges) contain(ip netip.Addr) bool {
	for _, one := range r.byName {
		if slices.ContainsFunc(one.prefixes, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			return true
		}
	}
	return false
}

// forDryRun is the range of the family that a dry run uses.
func (r *addressRanges) forDryRun(family corev1.IPFamily) netip.Prefix {
	i := slices.IndexFunc(r.own, func(p netip.Prefix) bool { return familyOf(p.Addr()) == family })
	return r.own[max(i, 0)]
}

// free finds an address that is not taken: first in the server's own range, then in the others by name.
func (r *addressRanges) free(family corev1.IPFamily, taken func(netip.Addr) bool) (netip.Addr, bool) {
	names := slices.Sorted(maps.Keys(r.byName))
	if i := slices.Index(names, defaultServiceCIDR); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, defaultServiceCIDR)
	}
	for _, name := range names {
		for _, p := range r.byName[name].prefixes {
			if !r.byName[name].ready || familyOf(p.Addr()) != family {
				continue
			}
			if ip, ok := freeIn(p, p == r.own[0], taken); ok {
				return ip, true
			}
		}
	}
	return netip.Addr{}, false
}

// freeIn searches the upper part of a range first, then the part for static allocation. main: the first address is for
// the Service kubernetes.
func freeIn(prefix netip.Prefix, main bool, taken func(netip.Addr) bool) (netip.Addr, bool) {
	first := uint64(1)
	end := uint64(1) << min(prefix.Addr().BitLen()-prefix.Bits(), 62)
	if prefix.Addr().Is4() && end > 1 {
		end-- // the broadcast address
	}
	if main {
		first++
	}
	if first >= end {
		return netip.Addr{}, false
	}
	size := end - 1
	static := min(max(16, size/16), staticIPs)
	if size <= 16 {
		static = 0
	}
	start := min(first+static, end)
	for _, part := range [][2]uint64{{start, end}, {first, start}} {
		if part[0] >= part[1] {
			continue
		}
		n := part[1] - part[0]
		from := rand.Uint64N(n) // not for security
		for i := range n {
			if ip := addressAt(prefix, part[0]+(from+i)%n); !taken(ip) {
				return ip, true
			}
		}
	}
	return netip.Addr{}, false
}

// addressAt is the address at an offset in p.
func addressAt(p netip.Prefix, offset uint64) netip.Addr {
	b := p.Addr().AsSlice()
	sum := new(big.Int).Add(new(big.Int).SetBytes(b), new(big.Int).SetUint64(offset))
	ip, _ := netip.AddrFromSlice(sum.FillBytes(b))
	return ip
}

// lastAddress is the highest address in p.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	ip, _ := netip.AddrFromSlice(b)
	return ip
}
