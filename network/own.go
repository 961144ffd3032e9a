// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Reserve reserves a port of this node for a listener of the node itself; what names it ("the API server"). No pod gets
// it as a host port, and packets to the port always reach the node, even if an earlier pod has it as a host port. It
// may be called at any time.
func (n *Network) Reserve(port uint16, what string) error {
	n.mu.Lock()
	n.own[port] = what
	k := n.kernel
	n.mu.Unlock()
	if k == nil {
		return nil // Run writes it
	}
	return n.writeOwn(k)
}

// writeOwn adds all reserved ports to the kernel's set. Existing elements are not an error.
func (n *Network) writeOwn(k *kernel) error {
	k.nftMu.Lock()
	defer k.nftMu.Unlock()
	elements := n.ownElements()
	if len(elements) == 0 {
		return nil
	}
	var err error
	for _, f := range n.families {
		err = errors.Join(err, k.nft.SetAddElements(n.rules(f, false).own, elements))
	}
	if err == nil {
		err = k.nft.Flush()
	}
	if err != nil {
		return fmt.Errorf("reserve the node's own ports: %w", err)
	}
	return nil
}

func ownKey(port uint16) []byte { return []byte{byte(port >> 8), byte(port)} }

// ownElements returns the elements of the reserved ports.
func (n *Network) ownElements() []nftables.SetElement {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]nftables.SetElement, 0, len(n.own))
	for port := range n.own {
		out = append(out, nftables.SetElement{Key: ownKey(port)})
	}
	return out
}

// checkPortsFree fails when a process of the node listens on a host port: its clients would reach the pod instead.
func (n *Network) checkPortsFree(ctx context.Context, ports []PortMapping) error {
	for _, portMapping := range ports {
		proto, err := protoNumber(portMapping.Protocol)
		if err != nil {
			return err
		}
		for _, f := range n.families {
			host := netip.IPv4Unspecified()
			if !f.is4() {
				host = netip.IPv6Unspecified()
			}
			if ip := portMapping.HostIP.Unmap(); ip.IsValid() && !ip.IsUnspecified() {
				if ip.Is4() != f.is4() {
					continue
				}
				host = ip
			}
			if err := listenOnce(ctx, proto, netip.AddrPortFrom(host, portMapping.HostPort)); errors.Is(err,
				unix.EADDRINUSE) {
				return fmt.Errorf("host port %d/%s is in use: a process of the node listens on it",
					portMapping.HostPort,
					protoName(proto))
			}
			// Other errors are ignored, such as an address that the node does not have yet.
		}
	}
	return nil
}

func listenOnce(ctx context.Context, proto byte, at netip.AddrPort) error {
	kind := "4"
	if at.Addr().Is6() {
		kind = "6"
	}
	var lc net.ListenConfig
	var closer io.Closer
	var err error
	switch proto {
	case unix.IPPROTO_TCP:
		closer, err = lc.Listen(ctx, "tcp"+kind, at.String())
	case unix.IPPROTO_UDP:
		closer, err = lc.ListenPacket(ctx, "udp"+kind, at.String())
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return closer.Close()
}
