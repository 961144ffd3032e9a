// SPDX-License-Identifier: Apache-2.0

package noderoles

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"keelson/client"
	"keelson/cluster/nodehost"
	"keelson/network/mesh"
	"keelson/proxy/services"
)

// TestResolversOfPods: pods ask the cluster's DNS server, at the address of a flag or the tenth of the Services;
// with a network that is not Keelson's only what a flag names.
func TestResolversOfPods(t *testing.T) {
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/108")}
	for name, test := range map[string]struct {
		config Config
		want   []string
	}{
		"built in":   {Config{Addresses: Addresses{Services: prefixes}}, []string{"10.96.0.10"}},
		"IPv6 first": {Config{Addresses: Addresses{Services: prefixes[1:]}}, []string{"fd00::a"}},
		"another's": {
			Config{Addresses: Addresses{Services: prefixes}, Options: Options{Endpoint: "unix:///run/containerd.sock"}},
			nil,
		},
		"no Services": {Config{}, nil},
		"named by flags": {
			Config{Options: Options{
				Kubelet:  nodehost.Options{ClusterDNS: []string{"10.0.0.1"}},
				Endpoint: "unix:///run/containerd.sock",
			}},
			[]string{"10.0.0.1"},
		},
	} {
		node := Node{Config: test.config}
		if got := node.podResolvers(); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestReservedPorts: no Service gets a port that this process or the tunnel listens on.
func TestReservedPorts(t *testing.T) {
	node := Node{Config: Config{Process: Process{Reserved: map[string]net.Addr{
		"the API server": &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443},
		"a socket":       &net.UnixAddr{Name: "/run/a"},
	}}}}
	port := func(proto uint8, number uint16) services.HostPort {
		return services.HostPort{Proto: proto, Port: number}
	}
	for _, test := range []struct {
		mode   mesh.Mode
		tunnel uint16 // 0: there is none
	}{
		{mesh.Auto, uint16(mesh.Auto.DefaultPort())},
		{mesh.WireGuard, uint16(mesh.WireGuard.DefaultPort())},
		{mesh.None, 0},
	} {
		node.PodRoutes.Mode = test.mode
		want := map[services.HostPort]string{
			port(unix.IPPROTO_TCP, 6443):                        "the API server",
			port(unix.IPPROTO_TCP, nodehost.DefaultKubeletPort): "the kubelet",
		}
		if test.tunnel != 0 {
			want[port(unix.IPPROTO_UDP, test.tunnel)] = "the tunnel of the pod network"
		}
		if got := node.reservedPorts(); !maps.Equal(got, want) {
			t.Errorf("tunnel %v: got %v, want %v", test.mode, got, want)
		}
	}
}

// TestNodeWithoutRoles: what a process does not have is not made: the kubelet then asks no proxy, the runtime no
// policies, and the DNS server no plugins.
func TestNodeWithoutRoles(t *testing.T) {
	node, err := New(Config{Client: func(role string) *client.Client {
		t.Errorf("a client for %s", role)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if node.serviceRules() != nil || node.podAddressCheck() != nil {
		t.Error("there are rules of a service proxy or addresses of plugins")
	}
}

// TestDNSServerNeedsAnAddress: without pod addresses the DNS server says what to do; with a network that is not
// Keelson's it is not there.
func TestDNSServerNeedsAnAddress(t *testing.T) {
	if _, err := (&Node{}).DNSServer(); err == nil ||
		!strings.Contains(err.Error(), "--dns-listen") {
		t.Errorf("no pod addresses: got %v, want a refusal that names --dns-listen", err)
	}
	if part, err := (&Node{Config: Config{Options: Options{Endpoint: "unix:///run/containerd.sock"}}}).DNSServer(); part != nil ||
		err != nil {
		t.Errorf("another network: got a part: %t, %v; want neither", part != nil, err)
	}
}
