// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
)

const ipv4Conf = "/proc/sys/net/ipv4/conf/"

// setUpForwarding lets packets pass between the bridge and the links that lead elsewhere. Where the whole machine
// forwards already nothing changes. Links that appear later are covered by the next start.
func (n *Network) setUpForwarding(k *kernel) error {
	// Host ports on 127.0.0.1 leave by the bridge; the guard chain keeps the way closed from the other side.
	if err := setSysctl(ipv4Conf+n.bridge+"/route_localnet", "1"); err != nil {
		return err
	}
	if on, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err == nil && strings.TrimSpace(string(on)) == "1" {
		return nil
	}
	links := map[string]bool{n.bridge: true}
	all, err := k.rt.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	addrs, err := k.rt.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	has := map[int]bool{}
	for _, a := range addrs {
		has[a.LinkIndex] = true
	}
	for _, l := range all {
		if a := l.Attrs(); has[a.Index] && a.Name != "lo" {
			links[a.Name] = true
		}
	}
	for name := range links {
		err := setSysctl(ipv4Conf+name+"/forwarding", "1")
		if errors.Is(err, fs.ErrNotExist) {
			continue // the link has just gone
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setSysctl writes only what is not so already: reading is allowed in more places than writing.
func setSysctl(path, value string) error {
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", "."), value, err)
	}
	return nil
}
