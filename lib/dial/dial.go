// SPDX-License-Identifier: Apache-2.0

// Package dial opens connections to addresses that strangers name: a tenant's Service, a node's kubelet, a registry's
// redirect. apiserver/outbound and runtime/image call it with a check of their own; admission and the load balancers
// ask it what an address is. It decides nothing itself, and knows neither HTTP nor Kubernetes.
//
// Invariant: an address is checked when the connection is made, after name resolution, so changing DNS answers do not
// bypass the check.
package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

const (
	// Timeout limits one connection attempt.
	Timeout   = 30 * time.Second
	keepAlive = 30 * time.Second
)

// Check reports why a connection to an address is not allowed, as an error of Refuse. It is called for each address of
// a name, and sees addresses as Canonical returns them.
type Check func(to netip.AddrPort) error

// RefusedError is the error for an address that is not allowed.
type RefusedError struct {
	Address netip.AddrPort
	Why     string
}

// Refuse returns a RefusedError.
func Refuse(to netip.AddrPort, why string) error { return &RefusedError{Address: to, Why: why} }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("address not allowed: %s is %s", e.Address, e.Why)
}

// Context connects to addr (host:port) if check allows the address that the name resolves to. The error for one that it
// does not allow is a *RefusedError. resolver may be nil: the machine's.
func Context(ctx context.Context, network, addr string, resolver *net.Resolver, check Check) (net.Conn, error) {
	dialer := net.Dialer{Timeout: Timeout, KeepAlive: keepAlive, Resolver: resolver}
	dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", address, err)
		}
		return check(Canonical(to))
	}
	conn, err := dialer.DialContext(ctx, network, addr)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return nil, refused
	}
	return conn, err
}

// Canonical returns an address without zone, and one that leads to an IPv4 address as that one, so that checks need not
// know the other forms.
func Canonical(to netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(canonical(to.Addr()), to.Port())
}

func canonical(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	for _, e := range embeddings {
		if ip.Is6() && e.prefix.Contains(ip) && !ip.IsLoopback() && !ip.IsUnspecified() {
			b := ip.As16()
			return netip.AddrFrom4([4]byte(b[e.at : e.at+4]))
		}
	}
	return ip
}

// embeddings are the IPv6 addresses that lead to the IPv4 address in them, from byte at on, where the network has a
// translator or a tunnel. ::ffff:0:0/96 is netip's Is4In6.
var embeddings = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64, RFC 6052
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},  // NAT64 of a network, RFC 8215, with its usual length of 96 bits
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // IPv4-translated, RFC 2765
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4, RFC 3056
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible, RFC 4291
}

// reserved is refused in addition to netip.Addr's unspecified address: Linux treats some of 0.0.0.0/8 as local.
var reserved = netip.MustParsePrefix("0.0.0.0/8")

// Loopback is what Special returns for a loopback address.
const Loopback = "a loopback address"

// metadata are the addresses of cloud providers' metadata services that are not link-local. They give a machine's
// credentials to any process on it that asks.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),      // Amazon
	netip.MustParseAddr("fd00:ec2::23"),       // Amazon, credentials of pods
	netip.MustParseAddr("fd20:ce::254"),       // Google
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"), // Oracle
	netip.MustParseAddr("100.100.100.200"),    // Alibaba
	netip.MustParseAddr("192.0.0.192"),        // Oracle, earlier
}

// Special returns what an address is that belongs to no other machine, or to many; empty for all others.
func Special(ip netip.Addr) string {
	ip = canonical(ip)
	switch {
	case ip.IsUnspecified(), reserved.Contains(ip):
		return "an unspecified address"
	case ip.IsLoopback():
		return Loopback
	case ip.IsLinkLocalUnicast():
		return "a link-local address"
	case ip.IsMulticast():
		return "a multicast address"
	case ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	case slices.Contains(metadata, ip):
		return "a metadata service's address"
	}
	return ""
}

// MachineAddresses returns the addresses of this machine's interfaces.
func MachineAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the machine's addresses: %w", err)
	}
	out := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}
