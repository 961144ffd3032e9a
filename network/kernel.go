// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernel holds the netlink sockets in the network namespace in which Run was called.
type kernel struct {
	rt  *netlink.Handle
	nft *nftables.Conn
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

func isNoLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}

// linkIndex returns the index of a link, 0 if there is none.
func linkIndex(rt *netlink.Handle, name string) (int, error) {
	link, err := rt.LinkByName(name)
	if isNoLink(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find link %s: %w", name, err)
	}
	return link.Attrs().Index, nil
}
