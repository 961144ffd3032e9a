// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// family is one IP family of the pod network.
type family struct {
	pods    netip.Prefix
	gateway netip.Addr
}

func (f family) is4() bool { return f.pods.Addr().Is4() }

// number returns the kernel's number of the family.
func (f family) number() int {
	if f.is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// families are the one or two families of a pod network, the first one first.
type families []family

// familiesOf checks the pod ranges.
func familiesOf(cidrs []netip.Prefix) (families, error) {
	if len(cidrs) == 0 || len(cidrs) > 2 {
		return nil, fmt.Errorf("pod CIDRs %v: want one, or one of each IP family", cidrs)
	}
	var out families
	for _, prefix := range cidrs {
		shortest := 8
		longest := 30
		want := "an IPv4 prefix from /8 to /30"
		if prefix.IsValid() && prefix.Addr().Is6() {
			shortest = 32
			longest = 126
			want = "an IPv6 prefix from /32 to /126"
		}
		if !prefix.IsValid() || prefix.Addr().Is4In6() || prefix.Bits() < shortest || prefix.Bits() > longest {
			return nil, fmt.Errorf("pod CIDR %q: want %s", prefix, want)
		}
		prefix = prefix.Masked()
		out = append(out, family{pods: prefix, gateway: prefix.Addr().Next()})
	}
	if len(out) == 2 && out[0].is4() == out[1].is4() {
		return nil, errors.New("pod CIDRs: both are of one IP family; want one of each")
	}
	return out, nil
}

// of returns the family that the address belongs to.
func (f families) of(a netip.Addr) (family, bool) {
	at := slices.IndexFunc(f, func(one family) bool { return one.is4() == a.Is4() })
	if at < 0 {
		return family{}, false
	}
	return f[at], true
}

// has reports whether the pod network has IPv4 (four) or IPv6.
func (f families) has(four bool) bool {
	return slices.ContainsFunc(f, func(one family) bool { return one.is4() == four })
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// hostRange returns the address as a host prefix.
func hostRange(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, a.BitLen())) }
