// SPDX-License-Identifier: Apache-2.0

package cluster

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

	"keelson/apiserver/admission"
	"keelson/controllers/nodeipam"
)

// anyCIDR stands where a range is asked for and not used.
var anyCIDR = netip.MustParsePrefix("10.42.0.0/24")

// defaultClusterCIDR is where nodes' ranges are from unless --cluster-cidr says otherwise.
var defaultClusterCIDR = netip.MustParsePrefix("10.42.0.0/16")

// podCIDRFile remembers a node's ranges in its data directory.
const podCIDRFile = "pod-cidr"

// serviceRangeFile remembers the ranges that Services had at this directory's first start. They keep them (docs/decisions/0114), whatever the flag says
// later, and with them the addresses of the API server and of the DNS server.
const serviceRangeFile = "service-cidr"

// broughtRanges are the ranges of pod addresses that nodes may bring. Where the controllers run elsewhere, only their --cluster-cidr says where nodes' ranges are.
func (c Config) broughtRanges() admission.PodRanges {
	ranges := c.Controllers.PodRanges
	if len(ranges.Cluster) == 0 && c.agents() {
		ranges.Cluster = []netip.Prefix{defaultClusterCIDR}
	}
	return admission.PodRanges{Cluster: ranges.Cluster, Bits4: ranges.Bits4, Bits6: ranges.Bits6, Reserved: c.keptServices, Own: c.PodCIDRs}
}

// keepServiceRanges returns the ranges that Services have from the first start on.
func keepServiceRanges(dir DataDir, asked []netip.Prefix) ([]netip.Prefix, error) {
	if out, err := rememberedRanges(dir.Sub(serviceRangeFile)); err != nil || len(out) > 0 {
		return out, err
	}
	if err := writeIfChanged(dir.Sub(serviceRangeFile), []byte(strings.Join(texts(asked), "\n")+"\n")); err != nil {
		return nil, fmt.Errorf("note the range of services: %w", err)
	}
	return asked, nil
}

// ServicesKept says that Services keep other ranges than the configuration asks for; empty: they do not.
func (c *Cluster) ServicesKept() string {
	asked, _ := c.cfg.Services.Ranges() // Validate has seen to them
	if slices.Equal(asked, c.cfg.keptServices) {
		return ""
	}
	return fmt.Sprintf("Services keep %s of the first start, in place of %s: to move them, add a ServiceCIDR with the new range",
		strings.Join(texts(c.cfg.keptServices), ","), strings.Join(texts(asked), ","))
}

// apart wants addresses of pods and of Services that have nothing in common. where says whence the pods' are.
func apart(pods, services []netip.Prefix, where string) error {
	for _, p := range pods {
		for _, s := range services {
			if p.Overlaps(s) {
				return fmt.Errorf("the pods of this node have %s (%s), and Services have %s: choose another --service-cluster-ip-range", p, where, s)
			}
		}
	}
	return nil
}

// outside are the ranges that none of the cluster's has.
func outside(ranges, cluster []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ranges), func(p netip.Prefix) bool {
		return slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Overlaps(p) && c.Bits() <= p.Bits() })
	})
}

// choosePodCIDRs returns the wanted ranges, those this directory had before, or one out of each of the cluster's ranges that no address
// of this machine is in, and that Services do not have. Where the search begins depends on the directory. Ranges that were found are the caller's until claim is closed:
// of clusters that start at the same time no two get the same, though no link has it yet.
func choosePodCIDRs(want []netip.Prefix, dir DataDir, from nodeipam.Config) (out []netip.Prefix, claim io.Closer, err error) {
	if len(want) > 0 {
		return want, io.NopCloser(nil), apart(want, from.Reserved, "as asked for")
	}
	if out, err = rememberedPodCIDRs(dir); err != nil || len(out) > 0 {
		if err == nil {
			err = apart(out, from.Reserved, dir.Sub(podCIDRFile))
		}
		return out, io.NopCloser(nil), err
	}
	ranges := from.Cluster
	if len(ranges) == 0 {
		ranges = []netip.Prefix{defaultClusterCIDR}
	}
	var claims closers
	for _, r := range ranges {
		p, c, err := freeRange(r, sizeIn(from, r), from.Reserved, dir)
		if err != nil {
			_ = claims.Close()
			return nil, nil, err
		}
		out, claims = append(out, p), append(claims, c)
	}
	if err := rememberPodCIDRs(dir, out); err != nil {
		_ = claims.Close()
		return nil, nil, err
	}
	return out, claims, nil
}

func rememberedPodCIDRs(dir DataDir) ([]netip.Prefix, error) {
	return rememberedRanges(dir.Sub(podCIDRFile))
}

// rememberedRanges are those in a file, a word each; none without the file.
func rememberedRanges(path string) ([]netip.Prefix, error) {
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

func rememberPodCIDRs(dir DataDir, ranges []netip.Prefix) error {
	if err := writeIfChanged(dir.Sub(podCIDRFile), []byte(strings.Join(texts(ranges), "\n")+"\n")); err != nil {
		return fmt.Errorf("note the pod range: %w", err)
	}
	return nil
}

func texts(ranges []netip.Prefix) []string {
	var out []string
	for _, p := range ranges {
		out = append(out, p.String())
	}
	return out
}

// sizeIn is the length of a node's range in the cluster's range.
func sizeIn(c nodeipam.Config, r netip.Prefix) int {
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

// freeRange finds a part of the range that nobody on this machine has.
func freeRange(r netip.Prefix, bits int, reserved []netip.Prefix, dir DataDir) (netip.Prefix, io.Closer, error) {
	parts := uint32(1) << min(max(bits-r.Bits(), 0), 16)
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	for i := range min(parts, 256) {
		p := part(r, bits, (h.Sum32()+i)%parts)
		if slices.ContainsFunc(reserved, p.Overlaps) {
			continue
		}
		claim, ours := claimRange(p)
		if !ours {
			continue
		}
		used, err := net.InterfaceAddrs() // after the claim: whoever had it before has its link by now
		if err == nil && !overlaps(p, used) {
			return p, claim, nil
		}
		_ = claim.Close()
		if err != nil {
			return p, nil, fmt.Errorf("choose a pod range: %w", err)
		}
	}
	return netip.Prefix{}, nil, fmt.Errorf("every /%d of %s is in use on this machine, or by Services", bits, r)
}

// part is number i of the parts of that length.
func part(r netip.Prefix, bits int, i uint32) netip.Prefix {
	b := r.Masked().Addr().AsSlice()
	for at := bits; i > 0; at, i = at-1, i>>1 {
		if i&1 == 1 {
			b[(at-1)/8] |= 1 << (7 - (at-1)%8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, bits)
}

// closers are closed together.
type closers []io.Closer

// Close closes all of them.
func (c closers) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// claimRange reports whether no other process of this network namespace has claimed the range. A claim is a name in the namespace of
// abstract sockets, which goes with the process at the latest. Nobody can connect to it: the socket does not listen.
func claimRange(p netip.Prefix) (claim io.Closer, ours bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil { // there are no such sockets: the addresses in use must do
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
