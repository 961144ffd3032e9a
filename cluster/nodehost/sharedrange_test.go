// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"keelson/cluster/datadir"
)

// TestSharedWords: the warning at the start of a second cluster names the first, which of them gets the packets, and
// ranges that are free.
func TestSharedWords(t *testing.T) {
	taken := []string{"10.96.0.0/16", "10.97.0.0/16", "192.168.255.0/24", "255.255.255.0/24", "fd00::/112"}
	free := func(r netip.Prefix) bool { return !slices.Contains(taken, r.String()) }
	for ranges, want := range map[string]string{
		"10.96.0.0/16":            "a new cluster can take --service-cluster-ip-range=10.98.0.0/16",
		"192.168.255.0/24":        "a new cluster can take --service-cluster-ip-range", // what follows is no private address
		"255.255.255.0/24":        "a new cluster can take --service-cluster-ip-range",
		"10.96.0.0/16,fd00::/112": "a new cluster can take --service-cluster-ip-range=10.98.0.0/16,fd00::1:0/112",
		// that one no one else has
		"10.96.0.0/16,fd11::/112":  "a new cluster can take --service-cluster-ip-range=10.98.0.0/16,fd11::/112",
		"fd00::/112,10.103.0.0/24": "a new cluster can take --service-cluster-ip-range=fd00::1:0/112,10.103.0.0/24",
	} {
		var list []netip.Prefix
		for r := range strings.SplitSeq(ranges, ",") {
			list = append(list, netip.MustParsePrefix(r))
		}
		got := sharedServicesText(list, []string{"data directory /a"}, free)
		for _, w := range []string{want, "another cluster on this machine has Services in " + ranges +
			" too (data directory /a)", "the host may reach either"} {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in %q", ranges, w, got)
			}
		}
		if n := len(strings.Fields(got)); n >= 25 {
			t.Errorf("%d words: %s", n, got)
		}
	}
}

// TestClustersOf: a cluster is known by the locks of its data directory, as long as a process has them.
func TestClustersOf(t *testing.T) {
	proc := t.TempDir()
	for fd, target := range map[string]string{
		"1/fd/3":    "/var/lib/a/keelson.pid",
		"1/fd/4":    "/var/lib/a/node.pid",
		"27/fd/9":   "/b\x1b[2J/node.pid",
		"28/fd/0":   "/dev/null",
		"self/fd/1": "/c/node.pid",
	} {
		if err := os.MkdirAll(filepath.Join(proc, filepath.Dir(fd)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(proc, fd)); err != nil {
			t.Fatal(err)
		}
	}
	inUse := datadir.InUse(proc)
	if !slices.Equal(inUse, []datadir.Dir{"/var/lib/a"}) {
		t.Errorf("data directories %q are in use, want /var/lib/a", inUse)
	}
	got := clustersOf([]string{ServiceTable("/var/lib/a"), "keelson-0-svc"}, inUse)
	if want := []string{"data directory /var/lib/a", "`nft delete table inet keelson-0-svc` if it is gone"}; !slices.Equal(
		got, want) {
		t.Errorf("clusters %q, want %q", got, want)
	}
	text := sharedServicesText([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, got, func(netip.Prefix) bool {
		return true
	})
	if want := "2 other clusters on this machine have Services in 10.96.0.0/16 too (data directory /var/lib/a; " +
		"`nft delete "; !strings.HasPrefix(text, want) {
		t.Errorf("got %q, want %q first", text, want)
	}
}
