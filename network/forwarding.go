// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"keelson/lib/linux"
)

const (
	ipv4Conf = "/proc/sys/net/ipv4/conf/"
	ipv6Conf = "/proc/sys/net/ipv6/conf/"
)

// forwardPods enables forwarding on the link of a pod. rp_filter lets a pod send from its own address only.
// route_localnet is for host ports on 127.0.0.1; the guard chain blocks the pod's access to the node's loopback.
func forwardPods(link string, families families) error {
	if families.has(false) {
		if err := errors.Join(setSysctl(ipv6Conf+link+"/disable_ipv6", "0"), forward6(link)); err != nil {
			return err
		}
	}
	if !families.has(true) {
		return nil
	}
	return errors.Join(
		setSysctl(ipv4Conf+link+"/forwarding", "1"),
		setSysctl(ipv4Conf+link+"/route_localnet", "1"),
		setSysctl(ipv4Conf+link+"/rp_filter", "1"),
	)
}

// forward6 enables IPv6 forwarding on one link. Kernels before 6.17 have a setting for the whole machine only, which
// forwarding.links6 sets.
func forward6(link string) error {
	err := setSysctl(ipv6Conf+link+"/force_forwarding", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// forwarding is what the machine's settings need, so that packets go between the pods, the bridge and the uplinks.
type forwarding struct {
	rt       *netlink.Handle
	names    names
	families families
	plugins  bool
	settings settings
	log      *slog.Logger
}

// setUp enables forwarding between the pods and the uplinks. If the whole machine forwards already, nothing changes.
// Links that appear later are set up at the next start.
func (w *forwarding) setUp() error {
	if err := w.setUpLegacyBridge(); err != nil {
		return err
	}
	if w.plugins {
		if err := w.setUpBridges(); err != nil {
			return err
		}
	}
	for _, f := range w.families {
		links, err := w.uplinks(f)
		if err != nil {
			return err
		}
		if f.is4() {
			err = w.links4(links)
		} else {
			err = w.links6(links)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setUpLegacyBridge serves pods that an earlier version attached to the bridge: proxy ARP answers for the other pods.
func (w *forwarding) setUpLegacyBridge() error {
	if !w.families.has(true) {
		return nil
	}
	return errors.Join(
		setSysctl(ipv4Conf+w.names.bridge+"/route_localnet", "1"), setSysctl(ipv4Conf+w.names.bridge+"/proxy_arp", "1"),
		setSysctl("/proc/sys/net/ipv4/neigh/"+w.names.bridge+"/proxy_delay", "0"))
}

// uplinks returns the links with addresses of the family, except lo and the bridge.
func (w *forwarding) uplinks(f family) ([]string, error) {
	all, err := linux.Dump(w.rt.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := linux.Dump(func() ([]netlink.Addr, error) { return w.rt.AddrList(nil, f.number()) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	has := map[int]bool{}
	for _, a := range addrs {
		has[a.LinkIndex] = true
	}
	var links []string
	for _, l := range all {
		if a := l.Attrs(); has[a.Index] && a.Name != "lo" && a.Group != w.names.group {
			links = append(links, a.Name)
		}
	}
	return links, nil
}

func isOn(path string) bool {
	b, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

func (w *forwarding) links4(links []string) error {
	if isOn("/proc/sys/net/ipv4/ip_forward") {
		return nil
	}
	// not recorded: the bridge is deleted in the end
	if err := setSysctl(ipv4Conf+w.names.bridge+"/forwarding", "1"); err != nil {
		return err
	}
	for _, name := range links {
		// the link may have been deleted meanwhile
		if err := w.settings.set(name, "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (w *forwarding) links6(links []string) error {
	if err := forward6(w.names.bridge); err != nil || isOn(ipv6Conf+"all/forwarding") {
		return err
	}
	perLink := true
	for _, name := range links {
		err := w.settings.set("6:"+name+":force_forwarding", "1")
		if errors.Is(err, fs.ErrNotExist) {
			perLink = false
		} else if err != nil {
			return err
		}
	}
	if _, err := os.Stat(ipv6Conf + w.names.bridge + "/force_forwarding"); err == nil || perLink && len(links) > 0 {
		return nil
	}
	for _, name := range links { // with forwarding the kernel ignores router advertisements, unless accept_ra is 2
		if isOn(ipv6Conf + name + "/accept_ra") {
			if err := w.settings.set("6:"+name+":accept_ra", "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return w.settings.set("6:all:forwarding", "1")
}

// bridged are the settings that pass packets between ports of a bridge through netfilter, for Services and network
// policies.
const bridged = "bridge:nf-call-"

// setUpBridges enables them, for bridges of CNI plugins. Without them a Service does not work if client and backend are
// on the same bridge.
func (w *forwarding) setUpBridges() error {
	for _, name := range []string{"iptables", "ip6tables"} {
		err := w.settings.set(bridged+name, "1")
		if errors.Is(err, fs.ErrNotExist) {
			w.log.Warn("bridges are not filtered: load the kernel module br_netfilter, or pods do not reach Services " +
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
func (w *forwarding) setUpConntrack() {
	for name, seconds := range map[string]string{
		"tcp_timeout_established": "86400",
		"tcp_timeout_close_wait":  "3600",
	} {
		// without the table nothing is forgotten; in a container the settings may be read-only
		if err := w.settings.set(tracked+name, seconds); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.log.Warn("connections are forgotten after the kernel's default time", "setting", name, "err", err)
		}
	}
}
