// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"keelson/cluster/datadir"
	"keelson/network"
)

// SharedServices warns that another cluster on this machine uses the same service CIDRs; empty: none does. Errors are
// ignored: a kernel without nftables has no other cluster.
func SharedServices(dir datadir.Dir, ranges []netip.Prefix) string {
	if os.Getuid() != 0 {
		return ""
	}
	tables, _ := network.SharedServices(dir.ID(), ranges)
	if len(tables) == 0 {
		return ""
	}
	return sharedServicesText(ranges, clustersOf(tables, datadir.InUse("/proc")), func(r netip.Prefix) bool {
		others, err := network.SharedServices(dir.ID(), []netip.Prefix{r})
		return err == nil && len(others) == 0
	})
}

// sharedServicesText is the warning's text; the kernel evaluates the table that was created last first. free reports
// whether no cluster serves addresses of a range.
func sharedServicesText(ranges []netip.Prefix, clusters []string, free func(netip.Prefix) bool) string {
	flag := "--service-cluster-ip-range"
	if others, ok := otherRanges(ranges, free); ok {
		flag += "=" + strings.Join(PrefixStrings(others), ",")
	}
	others := "another cluster on this machine has"
	if n := len(clusters); n > 1 {
		others = fmt.Sprintf("%d other clusters on this machine have", n)
	}
	return fmt.Sprintf("%s Services in %s too (%s): the host may reach either; a new cluster can take %s",
		others, strings.Join(PrefixStrings(ranges), ","), strings.Join(clusters, "; "), flag)
}

// clustersOf names the clusters of nftables tables by their data directories, one entry for each. A table's name
// contains a hash of the directory, which is unknown when no process has locked it: the rules stay when a cluster is
// stopped without `keelson down`.
func clustersOf(tables []string, directories []datadir.Dir) []string {
	var out []string
	for _, t := range tables {
		at := slices.IndexFunc(directories, func(d datadir.Dir) bool { return ServiceTable(d) == t })
		if at >= 0 {
			out = append(out, "data directory "+string(directories[at]))
		} else {
			out = append(out,
				fmt.Sprintf("`nft delete table inet %s` if it is gone", t))
		}
	}
	return out
}

// otherRanges are free ranges of the same size, one for each range of which another cluster has addresses.
func otherRanges(ranges []netip.Prefix, free func(netip.Prefix) bool) ([]netip.Prefix, bool) {
	const tries = 16
	var out []netip.Prefix
	for _, prefix := range ranges {
		found := free(prefix)
		for i := 0; i < tries && !found; i++ {
			var ok bool
			if prefix, ok = nextRange(prefix); !ok || !prefix.Addr().IsPrivate() {
				return nil, false
			}
			found = free(prefix)
		}
		if !found {
			return nil, false
		}
		out = append(out, prefix)
	}
	return out, true
}

// nextRange is the next range of the same size; ok is false after the last.
func nextRange(r netip.Prefix) (netip.Prefix, bool) {
	b := r.Masked().Addr().AsSlice()
	for at := r.Bits() - 1; at >= 0; at-- {
		bit := byte(1) << (7 - at%8)
		b[at/8] ^= bit
		if b[at/8]&bit != 0 {
			a, ok := netip.AddrFromSlice(b)
			return netip.PrefixFrom(a, r.Bits()), ok
		}
	}
	return netip.Prefix{}, false
}
