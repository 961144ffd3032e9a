// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/x509"
	"net"
	"slices"
	"testing"
	"time"
)

// TestDescribeNamesOnce: an address that a certificate has twice is listed once.
func TestDescribeNamesOnce(t *testing.T) {
	local := net.IPv4(127, 0, 0, 1)
	info := Describe("apiserver", "", &x509.Certificate{
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{local, net.IPv6loopback, local},
	}, ByOwner)
	if want := []string{"localhost", "127.0.0.1", "::1"}; !slices.Equal(info.Names, want) {
		t.Errorf("names %q, want %q", info.Names, want)
	}
}

// TestSortInfos: what ends on one day is in the order of the names.
func TestSortInfos(t *testing.T) {
	at := time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC)
	list := []Info{
		{Name: "ca", Expires: at.Add(48 * time.Hour)},
		{Name: "kubelet", Expires: at},
		{Name: "admin", Expires: at.Add(time.Second)},
	}
	SortInfos(list)
	if list[0].Name != "admin" || list[1].Name != "kubelet" || list[2].Name != "ca" {
		t.Errorf("got %s, %s, %s; want admin, kubelet, ca", list[0].Name, list[1].Name, list[2].Name)
	}
}
