// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"keelson/network"
)

// SharedServices says that another cluster on this machine has cluster IPs of these Services' ranges; empty: none has.
func (c *Cluster) SharedServices() string {
	if c.cfg.Rootless || c.cfg.NoNode {
		return ""
	}
	return sharedServices(c.dir, c.cfg.keptServices)
}

// sharedServices are the words for it. What cannot be read is not told: a kernel without nftables has no other cluster.
func sharedServices(dir DataDir, ranges []netip.Prefix) string {
	if os.Getuid() != 0 {
		return ""
	}
	tables, _ := network.SharedServices(dir.ID(), ranges)
	if len(tables) == 0 {
		return ""
	}
	return sharedWords(ranges, clustersOf(tables, directoriesInUse("/proc")), func(r netip.Prefix) bool {
		others, err := network.SharedServices(dir.ID(), []netip.Prefix{r})
		return err == nil && len(others) == 0
	})
}

// sharedWords say who gets the packets: the kernel asks the table first that was made last. free tells whether no cluster serves addresses of a range.
func sharedWords(ranges []netip.Prefix, clusters []string, free func(netip.Prefix) bool) string {
	flag := "--service-cluster-ip-range"
	if others, ok := otherRanges(ranges, free); ok {
		flag += "=" + strings.Join(texts(others), ",")
	}
	return fmt.Sprintf("another cluster on this machine has Services in %s too (%s): what the machine itself and pods of the host network send to a "+
		"cluster IP, also to the DNS server, reaches the cluster that was started last. Pods with addresses of their own are not concerned. "+
		"Services keep the range of a cluster's first start: one that starts anew gets another by `keelson up %s`",
		strings.Join(texts(ranges), ","), strings.Join(clusters, ", "), flag)
}

// clustersOf names the clusters of these tables by their data directories, of which a table's name has a hash.
func clustersOf(tables []string, directories []DataDir) []string {
	var out []string
	for _, t := range tables {
		at := slices.IndexFunc(directories, func(d DataDir) bool { return serviceTable(d) == t })
		if at >= 0 {
			out = append(out, "data directory "+string(directories[at]))
		} else {
			out = append(out, "it does not run; nftables table "+t)
		}
	}
	return out
}

// mostLooked is how many descriptors of a process are looked at: the locks of a data directory are among its first.
const mostLooked = 256

// directoriesInUse are the data directories that processes of this machine have locked.
func directoriesInUse(proc string) []DataDir {
	processes, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd"))
	var out []DataDir
	for _, dir := range processes {
		f, err := os.Open(dir)
		if err != nil {
			continue // it has ended
		}
		names, _ := f.Readdirnames(mostLooked)
		_ = f.Close()
		for _, name := range names {
			target, err := os.Readlink(filepath.Join(dir, name))
			base := filepath.Base(target)
			if err != nil || base != "keelson.pid" && base != "node.pid" || strings.ContainsFunc(target, func(r rune) bool { return !unicode.IsPrint(r) }) {
				continue
			}
			if d := DataDir(filepath.Dir(target)); !slices.Contains(out, d) {
				out = append(out, d)
			}
		}
	}
	return out
}

// otherRanges are those that Services may have in place of these: of the same size, one for each that another cluster has addresses of.
func otherRanges(ranges []netip.Prefix, free func(netip.Prefix) bool) ([]netip.Prefix, bool) {
	const tries = 16
	var out []netip.Prefix
	for _, r := range ranges {
		found := free(r)
		for i := 0; i < tries && !found; i++ {
			var ok bool
			if r, ok = behind(r); !ok || !r.Addr().IsPrivate() {
				return nil, false
			}
			found = free(r)
		}
		if !found {
			return nil, false
		}
		out = append(out, r)
	}
	return out, true
}

// behind is the range of the same size that comes next; there is none behind the last.
func behind(r netip.Prefix) (netip.Prefix, bool) {
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
