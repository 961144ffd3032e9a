// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
)

// anyCIDR stands where a range is asked for and not used.
var anyCIDR = netip.MustParsePrefix("10.42.0.0/24")

// choosePodCIDR returns the wanted range, the one this directory had before, or a /24 of 10.42.0.0/16 that no address of this
// machine is in. Where the search begins depends on the directory, so that clusters started at the same time seldom meet.
func choosePodCIDR(want netip.Prefix, dir DataDir) (netip.Prefix, error) {
	if want.IsValid() {
		return want, nil
	}
	path := dir.Sub("pod-cidr")
	b, err := os.ReadFile(path)
	if err == nil {
		p, err := netip.ParsePrefix(strings.TrimSpace(string(b)))
		if err != nil {
			return p, fmt.Errorf("read %s: %w", path, err)
		}
		return p, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return netip.Prefix{}, fmt.Errorf("read pod range: %w", err)
	}
	used, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list addresses: %w", err)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	for i := range uint32(256) {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(h.Sum32() + i), 0}), 24)
		if !overlaps(p, used) {
			return p, writeIfChanged(path, []byte(p.String()+"\n"))
		}
	}
	return netip.Prefix{}, errors.New("every /24 of 10.42.0.0/16 is in use on this machine")
}

func overlaps(p netip.Prefix, used []net.Addr) bool {
	for _, a := range used {
		if q, err := netip.ParsePrefix(a.String()); err == nil && p.Overlaps(q.Masked()) {
			return true
		}
	}
	return false
}
