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
	a.ranges[serviceCIDR.Name] = r
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
	delete(a.ranges, c.Name)
	if c.Name == defaultServiceCIDR {
		a.ranges[defaultServiceCIDR] = addressRange{prefixes: a.defaultRanges, ready: true}
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

// inReadyRangeLocked reports whether a ready range contains ip.
func (a *Allocator) inReadyRangeLocked(ip netip.Addr) bool {
	for _, r := range a.ranges {
		if r.ready && slices.ContainsFunc(r.prefixes, func(p netip.Prefix) bool { return allocatable(p, ip) }) {
			return true
		}
	}
	return false
}

// dryRunRange is the range of the family that a dry run uses.
func (a *Allocator) dryRunRange(family corev1.IPFamily) netip.Prefix {
	i := slices.IndexFunc(a.defaultRanges, func(p netip.Prefix) bool { return familyOf(p.Addr()) == family })
	return a.defaultRanges[max(i, 0)]
}

// freeIPLocked finds a free address: first in the server's own range, then in the others by name.
func (a *Allocator) freeIPLocked(family corev1.IPFamily, exclude map[netip.Addr]bool) (netip.Addr, bool) {
	names := slices.Sorted(maps.Keys(a.ranges))
	if i := slices.Index(names, defaultServiceCIDR); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, defaultServiceCIDR)
	}
	for _, name := range names {
		for _, p := range a.ranges[name].prefixes {
			if !a.ranges[name].ready || familyOf(p.Addr()) != family {
				continue
			}
			if ip, ok := a.freeInLocked(p, exclude); ok {
				return ip, true
			}
		}
	}
	return netip.Addr{}, false
}

// freeInLocked searches the upper part of a range first, then the part for static allocation.
func (a *Allocator) freeInLocked(prefix netip.Prefix, exclude map[netip.Addr]bool) (netip.Addr, bool) {
	first := uint64(1)
	end := uint64(1) << min(prefix.Addr().BitLen()-prefix.Bits(), 62)
	if prefix.Addr().Is4() && end > 1 {
		end-- // the broadcast address
	}
	if prefix == a.defaultRanges[0] {
		first++ // for the Service kubernetes
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
	for _, r := range [][2]uint64{{start, end}, {first, start}} {
		if r[0] >= r[1] {
			continue
		}
		n := r[1] - r[0]
		from := rand.Uint64N(n) // not for security
		for i := range n {
			ip := addressAt(prefix, r[0]+(from+i)%n)
			_, taken := a.ips[ip]
			_, claimed := a.ipAddresses[ip]
			if !taken && !claimed && !exclude[ip] {
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
