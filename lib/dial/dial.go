// SPDX-License-Identifier: Apache-2.0

// Package dial opens connections to addresses that strangers name: a tenant's Service, a node's kubelet, a registry's
// redirect. apiserver/outbound and runtime/image call it with a check of their own. It decides nothing itself, and
// knows neither HTTP nor Kubernetes.
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

// Canonical returns an address without zone, and one that is IPv4 in IPv6 as IPv4, so that checks need not know the
// other forms.
func Canonical(to netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
}

// reserved is refused in addition to netip.Addr's unspecified address: Linux treats some of 0.0.0.0/8 as local.
var reserved = netip.MustParsePrefix("0.0.0.0/8")

// Loopback is what Special returns for a loopback address.
const Loopback = "a loopback address"

// Special returns what a canonical address is that belongs to no other machine, or to many; empty for all others.
func Special(ip netip.Addr) string {
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
