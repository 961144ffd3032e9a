// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vishvananda/netlink"

	"keelson/lib/linux"
)

const (
	ipv4Conf = "/proc/sys/net/ipv4/conf/"
	ipv6Conf = "/proc/sys/net/ipv6/conf/"
)

// setUpPodLink lets the host route for the pod behind the link. A pod sends from its own address only; host ports on 127.0.0.1 leave by
// the link, and the guard chain keeps the way closed from the other side.
func (n *Network) setUpPodLink(name string) error {
	if n.has(false) {
		if err := errors.Join(setSysctl(ipv6Conf+name+"/disable_ipv6", "0"), n.forward6(name)); err != nil {
			return err
		}
	}
	if !n.has(true) {
		return nil
	}
	return errors.Join(
		setSysctl(ipv4Conf+name+"/forwarding", "1"), setSysctl(ipv4Conf+name+"/route_localnet", "1"), setSysctl(ipv4Conf+name+"/rp_filter", "1"))
}

// setUpBridged serves pods that an earlier version plugged into the bridge: they look there for the others, and the host answers.
func (n *Network) setUpBridged() error {
	if !n.has(true) {
		return nil
	}
	return errors.Join(
		setSysctl(ipv4Conf+n.bridge+"/route_localnet", "1"), setSysctl(ipv4Conf+n.bridge+"/proxy_arp", "1"),
		setSysctl("/proc/sys/net/ipv4/neigh/"+n.bridge+"/proxy_delay", "0"))
}

// forward6 lets the host route what comes in by one of its own links. Kernels before 6.17 know only the whole machine's switch, which
// setUpForwarding turns on.
func (n *Network) forward6(name string) error {
	err := setSysctl(ipv6Conf+name+"/force_forwarding", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// setUpForwarding lets packets pass between the pods and the links that lead elsewhere. Where the whole machine
// forwards already nothing changes. Links that appear later are covered by the next start.
func (n *Network) setUpForwarding(k *kernel) error {
	if err := n.setUpBridged(); err != nil {
		return err
	}
	if n.cfg.Plugins {
		if err := n.setUpBridges(); err != nil {
			return err
		}
	}
	for _, f := range n.families {
		links, err := n.outward(k, f)
		if err != nil {
			return err
		}
		if f.is4() {
			err = n.forwardLinks(links)
		} else {
			err = n.forwardLinks6(links)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// outward names the links that have addresses of the family, but for lo and the bridge.
func (n *Network) outward(k *kernel, f family) ([]string, error) {
	all, err := linux.Dump(k.rt.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := linux.Dump(func() ([]netlink.Addr, error) { return k.rt.AddrList(nil, f.number()) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	has := map[int]bool{}
	for _, a := range addrs {
		has[a.LinkIndex] = true
	}
	var links []string
	for _, l := range all {
		if a := l.Attrs(); has[a.Index] && a.Name != "lo" && a.Group != n.group {
			links = append(links, a.Name)
		}
	}
	return links, nil
}

func isOn(path string) bool {
	b, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

func (n *Network) forwardLinks(links []string) error {
	if isOn("/proc/sys/net/ipv4/ip_forward") {
		return nil
	}
	if err := setSysctl(ipv4Conf+n.bridge+"/forwarding", "1"); err != nil { // it goes with the bridge
		return err
	}
	for _, name := range links {
		if err := n.hold(name, "1"); err != nil && !errors.Is(err, fs.ErrNotExist) { // that link has just gone
			return err
		}
	}
	return nil
}

func (n *Network) forwardLinks6(links []string) error {
	if err := n.forward6(n.bridge); err != nil || isOn(ipv6Conf+"all/forwarding") {
		return err
	}
	perLink := true
	for _, name := range links {
		err := n.hold("6:"+name+":force_forwarding", "1")
		if errors.Is(err, fs.ErrNotExist) {
			perLink = false
		} else if err != nil {
			return err
		}
	}
	if _, err := os.Stat(ipv6Conf + n.bridge + "/force_forwarding"); err == nil || perLink && len(links) > 0 {
		return nil
	}
	for _, name := range links { // a machine that forwards believes no router's announcements, unless it is told to
		if isOn(ipv6Conf + name + "/accept_ra") {
			if err := n.hold("6:"+name+":accept_ra", "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return n.hold("6:all:forwarding", "1")
}

// bridged has packets between ports of a bridge pass through connection tracking and the rules of Services and policies.
const bridged = "bridge:nf-call-"

// setUpBridges does so for bridges of plugins. A kernel without it has them pass by, and Services then lead nowhere on the same bridge.
func (n *Network) setUpBridges() error {
	for _, name := range []string{"iptables", "ip6tables"} {
		err := n.hold(bridged+name, "1")
		if errors.Is(err, fs.ErrNotExist) {
			n.log.Warn("bridges are not filtered: load the kernel module br_netfilter, or pods do not reach Services whose pods are on the same bridge")
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settingOf is the setting that a record is about: LINK for IPv4's forwarding, 6:LINK:NAME for a setting of IPv6, bridge:NAME for one of
// bridges. No link's name has a colon.
func settingOf(record string) string {
	if name, ok := strings.CutPrefix(record, "bridge:"); ok {
		return "/proc/sys/net/bridge/bridge-" + name
	}
	if name, ok := strings.CutPrefix(record, "6:"); ok {
		return ipv6Conf + strings.ReplaceAll(name, ":", "/")
	}
	return ipv4Conf + record + "/forwarding"
}

// Who needs a link's forwarding is recorded in /run/keelson/forwarding/NAMESPACE/LINK, which like the setting itself is gone after a
// restart of the machine: a file per cluster, and in wasName what it was before the first of them. The last one puts it back.
const wasName = ".was" // no cluster's id

// forwarding is the directory of the records, locked until unlock is called.
func (n *Network) forwarding() (dir string, unlock func(), err error) {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return "", nil, fmt.Errorf("identify network namespace: %w", err)
	}
	dir = filepath.Join(n.cfg.RunDir, "forwarding", strconv.FormatUint(ns.Ino, 10)+"-"+bootID())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("record forwarding: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(n.cfg.RunDir, "forwarding", "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("record forwarding: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		_ = lock.Close() // nothing was written
		return "", nil, fmt.Errorf("lock the record of forwarding: %w", err)
	}
	return dir, func() { _ = lock.Close() }, nil // which unlocks it
}

// hold changes a setting. The record comes first: a crash leaves one of something that did not happen, which is harmless.
func (n *Network) hold(record, value string) error {
	setting := settingOf(record)
	have, err := os.ReadFile(setting)
	if err != nil {
		return err
	}
	dir, unlock, err := n.forwarding()
	if err != nil {
		return err
	}
	defer unlock()
	dir = filepath.Join(dir, record)
	was := strings.TrimSpace(string(have))
	if _, err := os.Stat(filepath.Join(dir, wasName)); errors.Is(err, fs.ErrNotExist) {
		if was == value {
			return nil // somebody else's: it stays when we go
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("record forwarding: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, wasName), []byte(was), 0o600); err != nil {
			return fmt.Errorf("record forwarding: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, n.cfg.ID), nil, 0o600); err != nil {
		return fmt.Errorf("record forwarding: %w", err)
	}
	return setSysctl(setting, value)
}

// restoreForwarding gives up what forward recorded, and puts back what nobody else needs.
func (n *Network) restoreForwarding() error {
	if _, err := os.Stat(n.cfg.RunDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, unlock, err := n.forwarding()
	if err != nil {
		return err
	}
	defer unlock()
	links, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the record of forwarding: %w", err)
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, n.restoreLink(filepath.Join(dir, l.Name()), l.Name()))
	}
	_ = os.Remove(dir) // others may have records in it
	return errors.Join(errs...)
}

func (n *Network) restoreLink(dir, link string) error {
	if err := os.Remove(filepath.Join(dir, n.cfg.ID)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // not ours
		}
		return fmt.Errorf("restore forwarding: %w", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if len(left) > 1 {
		return nil // another cluster needs it
	}
	was, err := os.ReadFile(filepath.Join(dir, wasName))
	if err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if !strings.Contains(link, ":") && isOn("/proc/sys/net/ipv4/ip_forward") {
		return nil // somebody wants the whole machine to forward by now
	}
	err = setSysctl(settingOf(link), string(was))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the link is gone
	}
	return err
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
