// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"keelson/cluster/datadir"
	"keelson/controllers/nodeipam"
)

// anyCIDR is passed where a range is required but never used.
var anyCIDR = netip.MustParsePrefix("10.42.0.0/24")

// DefaultClusterCIDR is the default of --cluster-cidr.
var DefaultClusterCIDR = netip.MustParsePrefix("10.42.0.0/16")

// KeepServiceRanges returns the service CIDRs of the first start; the first start stores those asked for.
func KeepServiceRanges(dir datadir.Dir, asked []netip.Prefix) ([]netip.Prefix, error) {
	if out, err := ReadRanges(dir.Sub(datadir.ServiceRangeFile)); err != nil || len(out) > 0 {
		return out, err
	}
	if err := datadir.WriteIfChanged(dir.Sub(datadir.ServiceRangeFile),
		[]byte(strings.Join(PrefixStrings(asked), "\n")+"\n")); err != nil {
		return nil, fmt.Errorf("note the range of services: %w", err)
	}
	return asked, nil
}

// checkDisjoint returns an error if a pod CIDR overlaps a service CIDR. where says where the pod CIDRs come from.
func checkDisjoint(pods, services []netip.Prefix, where string) error {
	for _, p := range pods {
		for _, s := range services {
			if p.Overlaps(s) {
				return fmt.Errorf("the pods of this node have %s (%s), and Services have %s: choose another "+
					"--service-cluster-ip-range", p, where, s)
			}
		}
	}
	return nil
}

// OutsideOf returns the ranges that lie in none of the cluster's ranges.
func OutsideOf(ranges, cluster []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ranges), func(p netip.Prefix) bool {
		return slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Overlaps(p) && c.Bits() <= p.Bits() })
	})
}

// ChoosePodCIDRs returns this node's pod CIDRs: the wanted ones, else the stored ones, else a free one from each
// cluster CIDR. A free one overlaps no address of this machine and no service CIDR; the search begins at an index that
// depends on the directory. A chosen range is reserved until claim is closed, so that clusters that start at the same
// time get different ranges.
func ChoosePodCIDRs(
	want []netip.Prefix, dir datadir.Dir, from nodeipam.Config,
) (out []netip.Prefix, claim io.Closer, err error) {
	if len(want) > 0 {
		return want, io.NopCloser(nil), checkDisjoint(want, from.Reserved, "as asked for")
	}
	if out, err = storedPodCIDRs(dir); err != nil || len(out) > 0 {
		if err == nil {
			err = checkDisjoint(out, from.Reserved, dir.Sub(datadir.PodCIDRFile))
		}
		return out, io.NopCloser(nil), err
	}
	ranges := from.Cluster
	if len(ranges) == 0 {
		ranges = []netip.Prefix{DefaultClusterCIDR}
	}
	var claims multiCloser
	for _, r := range ranges {
		p, c, err := freeRange(r, nodeBits(from, r), from.Reserved, dir)
		if err != nil {
			_ = claims.Close()
			return nil, nil, err
		}
		out = append(out, p)
		claims = append(claims, c)
	}
	if err := storePodCIDRs(dir, out); err != nil {
		_ = claims.Close()
		return nil, nil, err
	}
	return out, claims, nil
}

func storedPodCIDRs(dir datadir.Dir) ([]netip.Prefix, error) {
	return ReadRanges(dir.Sub(datadir.PodCIDRFile))
}

// ReadRanges reads the CIDRs in a file, separated by white space; none if the file does not exist.
func ReadRanges(path string) ([]netip.Prefix, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ranges: %w", err)
	}
	var out []netip.Prefix
	for text := range strings.FieldsSeq(string(b)) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func storePodCIDRs(dir datadir.Dir, ranges []netip.Prefix) error {
	content := strings.Join(PrefixStrings(ranges), "\n") + "\n"
	if err := datadir.WriteIfChanged(dir.Sub(datadir.PodCIDRFile), []byte(content)); err != nil {
		return fmt.Errorf("note the pod range: %w", err)
	}
	return nil
}

// nodeBits returns the prefix length of a node's range within the cluster CIDR r.
func nodeBits(c nodeipam.Config, r netip.Prefix) int {
	switch {
	case r.Addr().Is4() && c.Bits4 != 0:
		return c.Bits4
	case r.Addr().Is4():
		return 24
	case c.Bits6 != 0:
		return c.Bits6
	}
	return 64
}

// freeRange returns a sub-range of prefix that nothing on this machine uses.
func freeRange(prefix netip.Prefix, bits int, reserved []netip.Prefix, dir datadir.Dir) (netip.Prefix, io.Closer, error) {
	parts := uint32(1) << min(max(bits-prefix.Bits(), 0), 16)
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	for i := range min(parts, 256) {
		p := subRange(prefix, bits, (h.Sum32()+i)%parts)
		if slices.ContainsFunc(reserved, p.Overlaps) {
			continue
		}
		claim, ours := claimRange(p)
		if !ours {
			continue
		}
		used, err := net.InterfaceAddrs() // read after the claim: an earlier claimant has its link by now
		if err == nil && !overlaps(p, used) {
			return p, claim, nil
		}
		_ = claim.Close()
		if err != nil {
			return p, nil, fmt.Errorf("choose a pod range: %w", err)
		}
	}
	return netip.Prefix{}, nil, fmt.Errorf("every /%d of %s is in use on this machine, or by Services", bits, prefix)
}

// subRange returns sub-range i of r with prefix length bits.
func subRange(r netip.Prefix, bits int, i uint32) netip.Prefix {
	b := r.Masked().Addr().AsSlice()
	for at := bits; i > 0; at, i = at-1, i>>1 {
		if i&1 == 1 {
			b[(at-1)/8] |= 1 << (7 - (at-1)%8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, bits)
}

// multiCloser closes a list in one call.
type multiCloser []io.Closer

// Close closes all of them.
func (c multiCloser) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// claimRange reserves a range within this network namespace and reports whether it was free. The claim is an abstract
// Unix socket that does not listen; the kernel removes it at the latest with the process.
func claimRange(p netip.Prefix) (claim io.Closer, ours bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil { // no abstract sockets here: rely on the addresses in use
		return io.NopCloser(nil), true
	}
	name := "@keelson-pods-" + p.Masked().Addr().String()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		_ = unix.Close(fd)
		return io.NopCloser(nil), !errors.Is(err, unix.EADDRINUSE)
	}
	return os.NewFile(uintptr(fd), name), true
}

func overlaps(p netip.Prefix, used []net.Addr) bool {
	for _, a := range used {
		if q, err := netip.ParsePrefix(a.String()); err == nil && p.Overlaps(q.Masked()) {
			return true
		}
	}
	return false
}

// PrefixStrings formats ranges.
func PrefixStrings(ranges []netip.Prefix) []string {
	var out []string
	for _, p := range ranges {
		out = append(out, p.String())
	}
	return out
}
