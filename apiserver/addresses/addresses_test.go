// SPDX-License-Identifier: Apache-2.0

package addresses_test

import (
	"net"
	"net/netip"
	"testing"

	"keelson/apiserver/addresses"
	"keelson/apiserver/outbound"
)

// TestOutbound: no connection for others leads to the server, whichever of its addresses they name.
func TestOutbound(t *testing.T) {
	own := addresses.Own{
		Listener:     &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6443},
		Advertise:    "198.51.100.7:443",
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.97.3.0/16"), netip.MustParsePrefix("fd00:1::/108")},
	}
	egress := outbound.New(own.Outbound(netip.MustParseAddrPort("192.0.2.1:2379")))
	for _, refused := range []string{
		"192.0.2.1:6443", "192.0.2.1:2379", "198.51.100.7:443", "10.97.0.1:443", "[fd00:1::1]:8080",
	} {
		if err := egress.Check(outbound.Backend, netip.MustParseAddrPort(refused)); err == nil {
			t.Errorf("%s is one of the server's own addresses, and is not refused", refused)
		}
	}
	for _, other := range []string{"192.0.2.1:8080", "198.51.100.7:8443", "10.97.0.2:443"} {
		if err := egress.Check(outbound.Backend, netip.MustParseAddrPort(other)); err != nil {
			t.Errorf("%s is of another server: %v", other, err)
		}
	}
}

func TestAdvertised(t *testing.T) {
	for _, c := range []struct {
		own  addresses.Own
		host string
		port int32
	}{
		{addresses.Own{}, "", 6443},
		{addresses.Own{Listener: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7443}}, "", 7443},
		{addresses.Own{Listener: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7443}}, "192.0.2.1", 7443},
		{addresses.Own{Advertise: "kube.example.com:443"}, "", 443},
		{addresses.Own{Advertise: "192.0.2.2:443"}, "192.0.2.2", 443},
	} {
		host, port, err := c.own.Advertised()
		if err != nil || host != c.host || port != c.port {
			t.Errorf("%+v: %q, %d, %v; want %q, %d", c.own, host, port, err, c.host, c.port)
		}
	}
	if _, _, err := (addresses.Own{Advertise: "nowhere"}).Advertised(); err == nil {
		t.Error("an address without a port is accepted")
	}
}
