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
	"strings"

	"golang.org/x/sys/unix"
)

// anyCIDR stands where a range is asked for and not used.
var anyCIDR = netip.MustParsePrefix("10.42.0.0/24")

// choosePodCIDR returns the wanted range, the one this directory had before, or a /24 of 10.42.0.0/16 that no address of this
// machine is in. Where the search begins depends on the directory. A range that was found is the caller's until claim is closed:
// of clusters that start at the same time no two get the same, though no bridge has it yet.
func choosePodCIDR(want netip.Prefix, dir DataDir) (p netip.Prefix, claim io.Closer, err error) {
	if want.IsValid() {
		return want, io.NopCloser(nil), nil
	}
	path := dir.Sub("pod-cidr")
	b, err := os.ReadFile(path)
	if err == nil {
		if p, err = netip.ParsePrefix(strings.TrimSpace(string(b))); err != nil {
			return p, nil, fmt.Errorf("read %s: %w", path, err)
		}
		return p, io.NopCloser(nil), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return p, nil, fmt.Errorf("read pod range: %w", err)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	for i := range uint32(256) {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(h.Sum32() + i), 0}), 24)
		claim, ours := claimRange(p)
		if !ours {
			continue
		}
		used, err := net.InterfaceAddrs() // after the claim: whoever had it before has its bridge by now
		if err == nil && !overlaps(p, used) {
			if err = writeIfChanged(path, []byte(p.String()+"\n")); err == nil {
				return p, claim, nil
			}
		}
		_ = claim.Close()
		if err != nil {
			return p, nil, fmt.Errorf("choose a pod range: %w", err)
		}
	}
	return p, nil, errors.New("every /24 of 10.42.0.0/16 is in use on this machine")
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
