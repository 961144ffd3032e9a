// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

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
		// the link may have been deleted meanwhile
		if err := n.settings.set(name, "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
		err := n.settings.set("6:"+name+":force_forwarding", "1")
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
			if err := n.settings.set("6:"+name+":accept_ra", "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return n.settings.set("6:all:forwarding", "1")
}

// bridged are the settings that pass packets between ports of a bridge through netfilter, for Services and network
// policies.
const bridged = "bridge:nf-call-"

// setUpBridges enables them, for bridges of CNI plugins. Without them a Service does not work if client and backend are
// on the same bridge.
func (n *Network) setUpBridges() error {
	for _, name := range []string{"iptables", "ip6tables"} {
		err := n.settings.set(bridged+name, "1")
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
		if err := n.settings.set(tracked+name, seconds); err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.log.Warn("connections are forgotten after the kernel's default time", "setting", name, "err", err)
		}
	}
}
