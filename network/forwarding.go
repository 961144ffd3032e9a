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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

const (
	ipv4Conf = "/proc/sys/net/ipv4/conf/"
	ipv6Conf = "/proc/sys/net/ipv6/conf/"
)

// setUpPodLink enables forwarding on the link of a pod. rp_filter lets a pod send from its own address only.
// route_localnet is for host ports on 127.0.0.1; the guard chain blocks the pod's access to the node's loopback.
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
		setSysctl(ipv4Conf+name+"/forwarding", "1"), setSysctl(ipv4Conf+name+"/route_localnet", "1"), setSysctl(
			ipv4Conf+name+"/rp_filter", "1"))
}

// setUpLegacyBridge serves pods that an earlier version attached to the bridge: proxy ARP answers for the other pods.
func (n *Network) setUpLegacyBridge() error {
	if !n.has(true) {
		return nil
	}
	return errors.Join(
		setSysctl(ipv4Conf+n.bridge+"/route_localnet", "1"), setSysctl(ipv4Conf+n.bridge+"/proxy_arp", "1"),
		setSysctl("/proc/sys/net/ipv4/neigh/"+n.bridge+"/proxy_delay", "0"))
}

// forward6 enables IPv6 forwarding on one link. Kernels before 6.17 have a setting for the whole machine only, which
// setUpForwarding sets.
func (n *Network) forward6(name string) error {
	err := setSysctl(ipv6Conf+name+"/force_forwarding", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// setUpForwarding enables forwarding between the pods and the uplinks. If the whole machine forwards already, nothing
// changes. Links that appear later are set up at the next start.
func (n *Network) setUpForwarding(k *kernel) error {
	if err := n.setUpLegacyBridge(); err != nil {
		return err
	}
	if n.cfg.Plugins {
		if err := n.setUpBridges(); err != nil {
			return err
		}
	}
	for _, f := range n.families {
		links, err := n.uplinks(k, f)
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

// uplinks returns the links with addresses of the family, except lo and the bridge.
func (n *Network) uplinks(k *kernel, f family) ([]string, error) {
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
	// not recorded: the bridge is deleted in the end
	if err := setSysctl(ipv4Conf+n.bridge+"/forwarding", "1"); err != nil {
		return err
	}
	for _, name := range links {
		if err := n.setRecorded(name, "1"); err != nil && !errors.Is(err, fs.ErrNotExist) { // the link was just deleted
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
		err := n.setRecorded("6:"+name+":force_forwarding", "1")
		if errors.Is(err, fs.ErrNotExist) {
			perLink = false
		} else if err != nil {
			return err
		}
	}
	if _, err := os.Stat(ipv6Conf + n.bridge + "/force_forwarding"); err == nil || perLink && len(links) > 0 {
		return nil
	}
	for _, name := range links { // with forwarding the kernel ignores router advertisements, unless accept_ra is 2
		if isOn(ipv6Conf + name + "/accept_ra") {
			if err := n.setRecorded("6:"+name+":accept_ra", "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return n.setRecorded("6:all:forwarding", "1")
}

// bridged are the settings that pass packets between ports of a bridge through netfilter, for Services and network
// policies.
const bridged = "bridge:nf-call-"

// setUpBridges enables them, for bridges of CNI plugins. Without them a Service does not work if client and backend are
// on the same bridge.
func (n *Network) setUpBridges() error {
	for _, name := range []string{"iptables", "ip6tables"} {
		err := n.setRecorded(bridged+name, "1")
		if errors.Is(err, fs.ErrNotExist) {
			n.log.Warn("bridges are not filtered: load the kernel module br_netfilter, or pods do not reach Services " +
				"whose pods are on the same bridge")
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tracked are settings of the kernel's connection table.
const tracked = "conntrack:"

// setUpConntrack sets how long connections of TCP stay in the kernel's table as kube-proxy does: a silent one for a
// day, and one that its server has half closed for an hour, which the kernel forgets after a minute.
func (n *Network) setUpConntrack() {
	for name, seconds := range map[string]string{
		"tcp_timeout_established": "86400",
		"tcp_timeout_close_wait":  "3600",
	} {
		// without the table nothing is forgotten; in a container the settings may be read-only
		if err := n.setRecorded(tracked+name, seconds); err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.log.Warn("connections are forgotten after the kernel's default time", "setting", name, "err", err)
		}
	}
}

// settingOf returns the path of a record's sysctl: LINK is IPv4 forwarding, 6:LINK:NAME an IPv6 setting, bridge:NAME
// one of bridges, conntrack:NAME one of the connection table. Names of links have no colon.
func settingOf(record string) string {
	if name, ok := strings.CutPrefix(record, tracked); ok {
		return "/proc/sys/net/netfilter/nf_conntrack_" + name
	}
	if name, ok := strings.CutPrefix(record, "bridge:"); ok {
		return "/proc/sys/net/bridge/bridge-" + name
	}
	if name, ok := strings.CutPrefix(record, "6:"); ok {
		return ipv6Conf + strings.ReplaceAll(name, ":", "/")
	}
	return ipv4Conf + record + "/forwarding"
}

// The clusters that need a setting are recorded in /run/keelson/forwarding/NAMESPACE/RECORD, which like the setting
// does not survive a reboot: one file per cluster, and the value before the first of them in previousName. The last
// cluster restores that value.
const previousName = ".was" // not a valid cluster id

// forwarding returns the directory of the records, locked until unlock is called.
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
	return dir, func() { _ = lock.Close() }, nil // closing unlocks it
}

// setRecorded changes a setting and records that first: a record without the change, as a crash leaves it, is harmless.
func (n *Network) setRecorded(record, value string) error {
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
	if _, err := os.Stat(filepath.Join(dir, previousName)); errors.Is(err, fs.ErrNotExist) {
		if was == value {
			return nil // it was set before, so it is not restored
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("record forwarding: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, previousName), []byte(was), 0o600); err != nil {
			return fmt.Errorf("record forwarding: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, n.cfg.ID), nil, 0o600); err != nil {
		return fmt.Errorf("record forwarding: %w", err)
	}
	return setSysctl(setting, value)
}

// restoreForwarding removes this cluster's records, and restores the settings that no other cluster needs.
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
	_ = os.Remove(dir) // it fails if there are records of other clusters
	return errors.Join(errs...)
}

func (n *Network) restoreLink(dir, link string) error {
	if err := os.Remove(filepath.Join(dir, n.cfg.ID)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // this cluster does not need it
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
	was, err := os.ReadFile(filepath.Join(dir, previousName))
	if err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if !strings.Contains(link, ":") && isOn("/proc/sys/net/ipv4/ip_forward") {
		return nil // forwarding was enabled for the whole machine since
	}
	err = setSysctl(settingOf(link), string(was))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the link does not exist any more
	}
	return err
}

// setSysctl writes a value only if it differs: in containers /proc/sys may be read-only.
func setSysctl(path, value string) error {
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", "."),
			value, err)
	}
	return nil
}
