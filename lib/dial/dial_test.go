// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

func TestSpecial(t *testing.T) {
	for addr, want := range map[string]string{
		"10.244.0.5":             "",
		"8.8.8.8":                "",
		"2001:db8::1":            "",
		"192.0.2.7":              "",
		"fd00::1":                "",
		"127.0.0.1":              Loopback,
		"127.255.0.1":            Loopback,
		"::1":                    Loopback,
		"::ffff:127.0.0.1":       Loopback,
		"0.0.0.0":                "an unspecified address",
		"0.1.2.3":                "an unspecified address",
		"::":                     "an unspecified address",
		"169.254.169.254":        "a link-local address",
		"::ffff:169.254.169.254": "a link-local address",
		"fe80::1%lo":             "a link-local address",
		"224.0.0.1":              "a multicast address",
		"ff02::1":                "a multicast address",
		"255.255.255.255":        "the broadcast address",
		"fe80::1%1":              "a link-local address",
		// IPv4 addresses in IPv6, behind a translator or a tunnel
		"64:ff9b::127.0.0.1":         Loopback,
		"64:ff9b::169.254.169.254":   "a link-local address",
		"64:ff9b::8.8.8.8":           "",
		"64:ff9b:1::169.254.169.254": "a link-local address",
		"::ffff:0:169.254.169.254":   "a link-local address",
		"2002:7f00:1::1":             Loopback,
		"2002:a9fe:a9fe::5":          "a link-local address",
		"2002:808:808::1":            "",
		"::127.0.0.1":                Loopback,
		"::169.254.169.254":          "a link-local address",
		"::2":                        "an unspecified address", // 0.0.0.2
		"fd00:ec2::254":              "a metadata service's address",
		"100.100.100.200":            "a metadata service's address",
		"64:ff9b::100.100.100.200":   "a metadata service's address",
		"fd00:ec2::255":              "",
	} {
		to := Canonical(netip.AddrPortFrom(netip.MustParseAddr(addr), 1))
		for _, ip := range []netip.Addr{to.Addr(), netip.MustParseAddr(addr)} {
			if got := Special(ip); got != want {
				t.Errorf("Special(%s) of %s: got %q, want %q", ip, addr, got, want)
			}
		}
	}
}

// TestRefusedBeforeConnecting: the check sees the resolved address, and nothing is connected when it refuses.
func TestRefusedBeforeConnecting(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var seen []netip.Addr
	refuse := func(to netip.AddrPort) error {
		seen = append(seen, to.Addr())
		return Refuse(to, "refused by the test")
	}
	for _, host := range []string{"127.0.0.1", "localhost", "::ffff:127.0.0.1"} {
		_, err := Context(t.Context(), "tcp4", net.JoinHostPort(host, port), nil, refuse)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Why != "refused by the test" {
			t.Errorf("%s: got %v, want it refused", host, err)
		}
	}
	if want := netip.MustParseAddr("127.0.0.1"); !slices.Contains(seen, want) ||
		slices.ContainsFunc(seen, netip.Addr.Is4In6) {
		t.Errorf("the check saw %v", seen)
	}
	conn, err := Context(t.Context(), "tcp", net.JoinHostPort("localhost", port), nil, func(netip.AddrPort) error {
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestMachineAddresses(t *testing.T) {
	got, err := MachineAddresses()
	if err != nil || !slices.Contains(got, netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("got %v, %v; want 127.0.0.1 among them", got, err)
	}
}
