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

// kernel holds the open doors to the kernel of the network namespace that Run was called in.
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
			return nil, errors.New("this kernel has no nftables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES), which the pod network needs")
		}
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &kernel{rt: rt, nft: nft}, nil
}

func (k *kernel) close() {
	k.rt.Close()
	_ = k.nft.CloseLasting() // a socket; there is nothing to lose
}

// hardwareAddr derives a locally administered address from a name, so that it stays the same over restarts.
func hardwareAddr(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// podHardwareAddr follows from the pod's address: who has the address of an earlier pod in its neighbour table reaches the new one.
func podHardwareAddr(a netip.Addr) net.HardwareAddr {
	if a.Is6() {
		sum := sha256.Sum256(a.AsSlice())
		return net.HardwareAddr{0x0a, 0x58, sum[0], sum[1], sum[2], sum[3]}
	}
	ip := a.As4()
	return net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], ip[3]}
}

// links names the pods' links: those of our group, and those on the bridge, which earlier versions plugged in there.
func (n *Network) links(k *kernel) ([]string, error) {
	all, err := linux.Dump(k.rt.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []string
	for _, l := range all {
		a := l.Attrs()
		if l.Type() == "veth" && (a.Group == n.group && strings.HasPrefix(a.Name, n.linkPrefix()) || k.bridge != 0 && a.MasterIndex == k.bridge) {
			out = append(out, a.Name)
		}
	}
	return out, nil
}

// remove deletes a link and with it its other end. The kernel waits meanwhile until nobody sees it any more: some 10 ms.
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
