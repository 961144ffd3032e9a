// SPDX-License-Identifier: Apache-2.0

// Package addresses has the addresses by which others reach an API server: those of its listener, of the Service
// "kubernetes" and of the flags. outbound refuses connections to them, and the server publishes them. It does no I/O.
package addresses

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"keelson/apiserver/outbound"
)

// Own are the addresses of a server.
type Own struct {
	// Listener is where the server listens; nil: nowhere.
	Listener net.Addr
	// Advertise is the server's address for other machines, the endpoint of the Service "kubernetes". Empty: the
	// listener's, none without a listener.
	Advertise string
	// ServiceCIDRs are the service CIDRs, one or one per IP family, that of the default one first; default
	// 10.96.0.0/16.
	ServiceCIDRs []netip.Prefix
}

// HostPort is the host and port of the server; "" without a listener.
func (o Own) HostPort() string {
	if o.Advertise == "" && o.Listener != nil {
		return o.Listener.String()
	}
	return o.Advertise
}

// Advertised is the address by which other machines reach the server. A loopback address is not advertised:
// host-network processes on this machine reach the server anyway.
func (o Own) Advertised() (host string, port int32, err error) {
	at := o.HostPort()
	if at == "" {
		return "", 6443, nil
	}
	host, text, err := net.SplitHostPort(at)
	if err != nil {
		return "", 0, fmt.Errorf("address %q of the server: %w", at, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port of the server's address %q: %w", at, err)
	}
	if addr, err := netip.ParseAddr(host); err != nil || addr.IsLoopback() || addr.IsUnspecified() {
		return "", int32(n), nil //nolint:nilerr // a host name is valid but cannot be advertised
	}
	return host, int32(n), nil
}

// Endpoint is Advertised as an address; invalid: none.
func (o Own) Endpoint() (netip.AddrPort, error) {
	host, port, err := o.Advertised()
	if err != nil || host == "" {
		return netip.AddrPort{}, err
	}
	ip, err := netip.ParseAddr(host)
	return netip.AddrPortFrom(ip, uint16(port)), err // a port
}

// Ranges are the service CIDRs.
func (o Own) Ranges() []netip.Prefix {
	if len(o.ServiceCIDRs) == 0 {
		return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	}
	out := slices.Clone(o.ServiceCIDRs)
	for i := range out {
		out[i] = out[i].Masked()
	}
	return out
}

// CIDRs is Ranges as strings, for the ServiceCIDR kubernetes.
func (o Own) CIDRs() []string {
	var out []string
	for _, p := range o.Ranges() {
		out = append(out, p.String())
	}
	return out
}

// Outbound is the configuration of connections that never lead to this server. others are further listeners of this
// process.
func (o Own) Outbound(others ...netip.AddrPort) outbound.Config {
	out := outbound.Config{Listeners: others}
	if a, ok := o.Listener.(*net.TCPAddr); ok {
		out.Listeners = append(out.Listeners, a.AddrPort())
	}
	if end, err := o.Endpoint(); err == nil && end.IsValid() {
		out.Listeners = append(out.Listeners, end)
	}
	for _, r := range o.Ranges() { // the Service "kubernetes" has the first address of each
		out.OwnAddresses = append(out.OwnAddresses, r.Addr().Next())
	}
	return out
}
