// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"keelson/apiserver/options"
	"keelson/cluster/listen"
)

// TestEndpoint: where the service "kubernetes" leads.
func TestEndpoint(t *testing.T) {
	pods := []netip.Prefix{netip.MustParsePrefix("10.42.7.0/24")}
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"up":                {Config{}, "10.42.7.1"},
		"API server alone":  {Config{NoNode: true, PodsBeside: true}, "10.42.7.1"},
		"no node":           {Config{NoNode: true}, ""},
		"rootless":          {Config{Rootless: true}, ""},
		"another runtime":   {Config{Runtime: ContainerRuntime{Endpoint: "unix:///x"}}, ""},
		"an address":        {Config{Options: Options{Listen: listen.Options{Bind: "192.0.2.7"}}}, "192.0.2.7"},
		"loopback, said so": {Config{Options: Options{Listen: listen.Options{Bind: "127.0.0.1"}}}, ""},
		"advertised": {
			Config{
				Options: Options{
					Services: options.Services{Advertise: "192.0.2.9"},
					Listen: listen.Options{
						Bind: "0.0.0.0",
					},
				},
			}, "192.0.2.9",
		},
	} {
		c.cfg.PodCIDRs = pods
		got := ""
		if ip := c.cfg.endpoint(); ip.IsValid() {
			got = ip.String()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		ips := servingAddresses(c.cfg, []netip.Prefix{
			netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/108"),
		})
		for _, want := range []string{"127.0.0.1", "10.96.0.1", "fd00::1", c.want} {
			if want != "" && !slices.ContainsFunc(ips, func(ip net.IP) bool { return ip.Equal(net.ParseIP(want)) }) {
				t.Errorf("%s: the certificate is not for %s: %v", name, want, ips)
			}
		}
	}
	for bind, want := range map[string]string{
		"":          "",
		"127.0.0.1": "",
		"::1":       "",
		"0.0.0.0":   "every address",
		"192.0.2.7": "listens on 192.0.2.7",
	} {
		if got := (listen.Options{Bind: bind}).Opens(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("bind %q opens %q, want %q", bind, got, want)
		}
	}
	if err := (listen.Options{Bind: "host"}).Validate(); err == nil {
		t.Error("a name is taken as an address")
	}
	for name, ok := range map[string]bool{
		"192.0.2.9":       true,
		"2001:db8::9":     true,
		"api.example.com": true,
		"*.example.com":   true,
		"https://a":       false,
		"a_b":             false,
		"fe80::1%eth0":    false,
		"":                false,
	} {
		if err := (listen.Options{Names: []string{name}}).Validate(); (err == nil) != ok {
			t.Errorf("--tls-san %q: %v", name, err)
		}
	}
	names, addresses := listen.Options{Names: []string{"192.0.2.9", "api.example.com"}}.Certified()
	if !slices.Equal(names, []string{"api.example.com"}) || len(addresses) != 1 ||
		!addresses[0].Equal(net.IPv4(192, 0, 2, 9)) {
		t.Errorf("names %v, addresses %v", names, addresses)
	}
}
