// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNewRefuses(t *testing.T) {
	good := Config{ID: "ab1", Dir: t.TempDir(), PodCIDRs: ranges("10.42.0.0/24")}
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.ID = "" }, "network id"},
		{func(c *Config) { c.ID = "thirteen-char" }, "network id"},
		{func(c *Config) { c.ID = "a/b" }, "network id"},
		{func(c *Config) { c.PodCIDRs = nil }, "pod CIDR"},
		{func(c *Config) { c.PodCIDRs = ranges("fd00::/127") }, "pod CIDR"},
		{func(c *Config) { c.PodCIDRs = ranges("10.0.0.0/24", "10.0.1.0/24") }, "one of each"},
		{func(c *Config) { c.PodCIDRs = ranges("10.0.0.0/31") }, "pod CIDR"},
	} {
		cfg := good
		c.change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%+v): got %v, want %q in it", cfg, err, c.want)
		}
	}
}

func TestUsable(t *testing.T) {
	cidr := netip.MustParsePrefix("10.0.0.0/29")
	for addr, want := range map[string]bool{
		"10.0.0.0": false,
		"10.0.0.1": false,
		"10.0.0.2": true,
		"10.0.0.6": true,
		"10.0.0.7": false,
		"10.0.0.8": false,
		"::1":      false,
	} {
		if got := usable(cidr, netip.MustParseAddr(addr)); got != want {
			t.Errorf("usable(%s, %s): got %v, want %v", cidr, addr, got, want)
		}
	}
}

func TestKeysOf(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.1")
	for _, c := range []struct {
		ports []PortMapping
		want  string
	}{
		{[]PortMapping{{HostPort: 80, ContainerPort: 80}, {Protocol: "udp", HostPort: 80, ContainerPort: 80}}, ""},
		{[]PortMapping{{HostPort: 80, ContainerPort: 80}, {HostPort: 80, ContainerPort: 81, HostIP: ip}}, ""},
		{
			[]PortMapping{{HostPort: 80, ContainerPort: 80}, {HostPort: 80, ContainerPort: 81}},
			"host port 80/TCP is mapped twice",
		},
		{[]PortMapping{{HostPort: 0, ContainerPort: 80}}, "ports begin at 1"},
		{[]PortMapping{{Protocol: "ICMP", HostPort: 1, ContainerPort: 80}}, "want TCP, UDP or SCTP"},
		{[]PortMapping{{HostPort: 1, ContainerPort: 80, HostIP: netip.MustParseAddr("::1")}}, ""},
		{[]PortMapping{{HostPort: 1, ContainerPort: 80, HostIP: netip.IPv6Unspecified()}}, ""},
	} {
		_, err := keysOf(c.ports)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("keysOf(%v): got %v, want %q", c.ports, err, c.want)
		}
	}
}

func TestDamagedAndOldLeasesAreDropped(t *testing.T) {
	cfg := Config{ID: "x", Dir: t.TempDir(), PodCIDRs: ranges("10.42.0.0/24")}
	network, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := network.leases.take("good", "/ns", nil); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"garbage": "{",
		".half":   "{}",
		"outside": `{"addrs":["10.1.0.1"],"boot":"` + bootID() + `"}`,
		"earlier": `{"addrs":["10.42.0.9"],"boot":"other"}`,
		"thief":   `{"addrs":["10.42.0.2"],"link":"` + network.names.link("thief") + `","boot":"` + bootID() + `"}`,
	} {
		if err := os.WriteFile(network.leases.records.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	network, err = New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := network.Attached(); len(got) != 1 || got[0] != "good" {
		t.Errorf("Attached: got %q, want good alone", got)
	}
	if left, err := os.ReadDir(network.leases.records.dir); err != nil || len(left) != 2 {
		t.Errorf("files: got %v, %v, want a lease and its copy", left, err)
	}
}

// TestDamagedLeaseIsRestored: the address of a running pod is not given to another because a file was damaged.
func TestDamagedLeaseIsRestored(t *testing.T) {
	cfg := Config{ID: "x", Dir: t.TempDir(), PodCIDRs: ranges("10.42.0.0/24")}
	network, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var want []netip.Addr
	for _, id := range []string{"emptied", "removed"} {
		l, _, err := network.leases.take(id, "/ns", nil)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, l.Addrs...)
	}
	if err := os.WriteFile(network.leases.records.path("emptied"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(network.leases.records.path("removed")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second start finds nothing wrong
		if network, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		for i, id := range []string{"emptied", "removed"} {
			if l := network.leases.of(id); l == nil || l.Addrs[0] != want[i] {
				t.Errorf("lease %s: got %v, want %s", id, l, want[i])
			}
		}
	}
	if kept, err := os.ReadDir(filepath.Join(cfg.Dir, "damaged")); err != nil || len(kept) != 1 {
		t.Errorf("set aside: got %v, %v, want the emptied lease", kept, err)
	}
}

func FuzzDecodeLease(f *testing.F) {
	f.Add(
		[]byte(
			`{"addrs":["10.42.0.2"],"link":"kv-1","netns":"/x","ports":[{"protocol":"TCP","hostIP":"","hostPort":1,"containerPort":2}],"boot":"b"}`))
	f.Add([]byte(`{"addrs":["10.42.1.2"],"link":"../x"}`))
	f.Add([]byte(`{"addrs":["10.42.0.3","::1"],"ports":[{"protocol":"SCTP","hostIP":"::","hostPort":70000}]}`))
	families, err := familiesOf(ranges("10.42.0.0/24", "fd00::/64"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeLease(b, families)
		if err == nil && (len(l.Addrs) == 0 || len(l.Addrs) > 2 || !usable(families[0].pods, l.Addrs[0]) && !usable(
			families[1].pods, l.Addrs[0])) {
			t.Errorf("%q: accepted %v", b, l.Addrs)
		}
	})
}
