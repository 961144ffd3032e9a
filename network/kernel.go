// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

// kernel holds the netlink sockets in the network namespace in which Run was called.
type kernel struct {
	rt     *netlink.Handle
	bridge int // index
	mac    net.HardwareAddr

	nftMu sync.Mutex // one transaction at a time
	nft   *nftables.Conn
}

func openKernel() (*kernel, error) {
	rt, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	nft, err := nftables.New(nftables.AsLasting())
	if err != nil {
		rt.Close()
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			return nil, errors.New("this kernel has no nftables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES), which " +
				"the pod network needs")
		}
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &kernel{rt: rt, nft: nft}, nil
}

func (k *kernel) close() {
	k.rt.Close()
	_ = k.nft.CloseLasting() // nothing is lost
}

// hardwareAddr derives a locally administered MAC address from a name, so that it does not change with a restart.
func hardwareAddr(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// podHardwareAddr derives the MAC address from the pod's IP address, so that neighbour entries stay valid when a new
// pod gets the address.
func podHardwareAddr(a netip.Addr) net.HardwareAddr {
	if a.Is6() {
		sum := sha256.Sum256(a.AsSlice())
		return net.HardwareAddr{0x0a, 0x58, sum[0], sum[1], sum[2], sum[3]}
	}
	ip := a.As4()
	return net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], ip[3]}
}

// links returns the pods' links: those of this network's group, and those on the bridge, where earlier versions
// attached pods.
func (n *Network) links(k *kernel) ([]string, error) {
	all, err := linux.Dump(k.rt.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []string
	for _, l := range all {
		a := l.Attrs()
		if l.Type() == "veth" && (a.Group == n.group && strings.HasPrefix(a.Name, n.linkPrefix()) ||
			k.bridge != 0 && a.MasterIndex == k.bridge) {
			out = append(out, a.Name)
		}
	}
	return out, nil
}

// remove deletes a veth pair by one of its links. It takes some 10 ms, because the kernel waits for an RCU grace
// period.
func (k *kernel) remove(name string) error {
	link, err := k.rt.LinkByName(name)
	if isNoLink(err) {
		return nil
	}
	if err == nil {
		err = k.rt.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

func isNoLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}
