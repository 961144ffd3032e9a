// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"strings"
	"testing"
)

// TestSharedWords: who starts a second cluster is told who gets the packets, and a range that is free.
func TestSharedWords(t *testing.T) {
	taken := netip.MustParsePrefix("10.97.0.0/16")
	free := func(r netip.Prefix) bool { return r != taken }
	for ranges, want := range map[string]string{
		"10.96.0.0/16":            "`keelson up --service-cluster-ip-range=10.98.0.0/16`",
		"192.168.255.0/24":        "`keelson up --service-cluster-ip-range`", // what follows is no private address
		"255.255.255.0/24":        "`keelson up --service-cluster-ip-range`",
		"10.96.0.0/16,fd00::/112": "`keelson up --service-cluster-ip-range`",
	} {
		var list []netip.Prefix
		for r := range strings.SplitSeq(ranges, ",") {
			list = append(list, netip.MustParsePrefix(r))
		}
		got := sharedWords(list, []string{"keelson-a-svc"}, free)
		for _, w := range []string{want, "Services in " + ranges + " too (nftables table keelson-a-svc)", "reaches the cluster that was started last"} {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in %q", ranges, w, got)
			}
		}
	}
}
