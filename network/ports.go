// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// PortMapping forwards a port of the node to a port of the pod.
type PortMapping struct {
	Protocol      string     `json:"protocol"` // TCP, UDP, SCTP; empty means TCP
	HostIP        netip.Addr `json:"hostIP"`   // zero or unspecified: every address of the node, 127.0.0.1 included
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
}

// portKey is a host port in use. A zero ip stands for all addresses.
type portKey struct {
	proto byte
	ip    netip.Addr
	port  uint16
}

// keysOf checks port mappings; one port twice within a pod is an error too.
func keysOf(ports []PortMapping) ([]portKey, error) {
	var out []portKey
	seen := make(map[portKey]bool, len(ports))
	for _, portMapping := range ports {
		proto, err := protoNumber(portMapping.Protocol)
		if err != nil {
			return nil, err
		}
		if portMapping.HostPort == 0 || portMapping.ContainerPort == 0 {
			return nil, fmt.Errorf("port mapping %d to %d: ports begin at 1", portMapping.HostPort,
				portMapping.ContainerPort)
		}
		k := portKey{proto: proto, port: portMapping.HostPort, ip: portMapping.hostIP()}
		if seen[k] {
			return nil, fmt.Errorf("host port %d/%s is mapped twice", portMapping.HostPort, protoName(proto))
		}
		seen[k] = true
		out = append(out, k)
	}
	return out, nil
}

// hostIP returns the address of the node to which the mapping is limited; the zero address means all.
func (p PortMapping) hostIP() netip.Addr {
	if ip := p.HostIP.Unmap(); ip.IsValid() && !ip.IsUnspecified() {
		return ip
	}
	return netip.Addr{}
}

// hostPorts are the ports of this node in use. leases.mu guards it.
type hostPorts struct {
	pods map[portKey]string // host port -> sandbox id
	node map[uint16]string  // reserved port -> what listens; see Network.Reserve
}

// checkFree refuses ports in use by another pod and, with reserved, those of the node itself.
func (h *hostPorts) checkFree(keys []portKey, reserved bool) error {
	for _, k := range keys {
		if what, taken := h.node[k.port]; taken && reserved {
			return fmt.Errorf("host port %d/%s belongs to %s of this node; choose another one", k.port,
				protoName(k.proto), what)
		}
		if owner, taken := h.pods[k]; taken {
			return fmt.Errorf("host port %d/%s is taken by sandbox %s", k.port, protoName(k.proto), owner)
		}
	}
	return nil
}

func (h *hostPorts) give(keys []portKey, pod string) {
	for _, k := range keys {
		h.pods[k] = pod
	}
}

// takeBack frees those of the ports that the pod has.
func (h *hostPorts) takeBack(keys []portKey, pod string) {
	for _, k := range keys {
		if h.pods[k] == pod {
			delete(h.pods, k)
		}
	}
}

// checkPortsFree fails when a process of the node listens on a host port: its clients would reach the pod instead.
func checkPortsFree(ctx context.Context, families families, ports []PortMapping) error {
	for _, portMapping := range ports {
		proto, err := protoNumber(portMapping.Protocol)
		if err != nil {
			return err
		}
		for _, f := range families {
			host := netip.IPv4Unspecified()
			if !f.is4() {
				host = netip.IPv6Unspecified()
			}
			if ip := portMapping.hostIP(); ip.IsValid() {
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

func protoNumber(name string) (byte, error) {
	switch strings.ToUpper(name) {
	case "", "TCP":
		return unix.IPPROTO_TCP, nil
	case "UDP":
		return unix.IPPROTO_UDP, nil
	case "SCTP":
		return unix.IPPROTO_SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q: want TCP, UDP or SCTP", name)
}

func protoName(n byte) string {
	switch n {
	case unix.IPPROTO_UDP:
		return "UDP"
	case unix.IPPROTO_SCTP:
		return "SCTP"
	}
	return "TCP"
}
