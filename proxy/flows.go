// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"keelson/proxy/services"
)

// stale matches flows of UDP that lead where the Service does not lead any more: the kernel would go on sending there, since a flow that
// sees packets never ends.
type stale struct {
	fronts map[netip.AddrPort]map[netip.AddrPort]bool // where they were sent -> endpoints that are right
	ports  map[uint16]map[netip.AddrPort]bool         // the same by node port
}

// MatchConntrackFlow tells whether the flow is to be forgotten.
func (s *stale) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok1 := netip.AddrFromSlice(f.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(f.Reverse.SrcIP)
	if !ok1 || !ok2 {
		return false
	}
	right, ours := s.fronts[netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort)]
	if !ours {
		right, ours = s.ports[f.Forward.DstPort]
	}
	return ours && !right[netip.AddrPortFrom(from.Unmap(), f.Reverse.SrcPort)]
}

// forgetFlows drops the flows of UDP ports that lost an endpoint, or have their first.
func (p *Proxy) forgetFlows(c services.Change) {
	s := &stale{fronts: map[netip.AddrPort]map[netip.AddrPort]bool{}, ports: map[uint16]map[netip.AddrPort]bool{}}
	for n, after := range c.After {
		before := c.Before[n]
		if before == nil {
			before = &services.Part{}
		}
		for _, port := range s.changed(before, after) {
			right := map[netip.AddrPort]bool{}
			for _, e := range port.Endpoints {
				right[e.Addr] = true
			}
			for _, f := range port.Fronts {
				s.fronts[f] = right
			}
			if port.NodePort != 0 {
				s.ports[port.NodePort] = right
			}
		}
	}
	if len(s.fronts) == 0 {
		return
	}
	h, err := p.conntrack()
	if err != nil {
		p.log.Warn("stale flows of UDP stay", "err", err)
		return
	}
	defer h.Close()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, s); err != nil && !errors.Is(err, unix.ENOENT) {
			p.log.Warn("stale flows of UDP stay", "err", err)
		}
	}
}

// changed are the UDP ports, as they are now, that lost endpoints, have their first ones, or went altogether.
func (*stale) changed(before, after *services.Part) []services.Port {
	var out []services.Port
	now := map[netip.AddrPort]services.Port{}
	for _, port := range after.Ports {
		if port.Proto == unix.IPPROTO_UDP {
			now[port.Fronts[0]] = port
		}
	}
	for _, old := range before.Ports {
		if old.Proto != unix.IPPROTO_UDP {
			continue
		}
		port, stays := now[old.Fronts[0]]
		delete(now, old.Fronts[0])
		if !stays {
			old.Endpoints = nil
			out = append(out, old)
			continue
		}
		if lost(old.Endpoints, port.Endpoints) || len(old.Endpoints) == 0 && len(port.Endpoints) > 0 || len(old.Fronts) != len(port.Fronts) {
			port.Fronts = append(port.Fronts, old.Fronts...)
			out = append(out, port)
		}
	}
	for _, port := range now { // new: packets may have been sent before
		if len(port.Endpoints) > 0 {
			out = append(out, port)
		}
	}
	return out
}

func lost(before, after []services.Endpoint) bool {
	have := map[netip.AddrPort]bool{}
	for _, e := range after {
		have[e.Addr] = true
	}
	for _, e := range before {
		if !have[e.Addr] {
			return true
		}
	}
	return false
}

func (p *Proxy) conntrack() (*netlink.Handle, error) {
	if p.cfg.NetNS != 0 {
		return netlink.NewHandleAt(netns.NsHandle(p.cfg.NetNS), unix.NETLINK_NETFILTER)
	}
	return netlink.NewHandle(unix.NETLINK_NETFILTER)
}

// listening tells whether a process of this node listens on the address and port. Another error than that, as for an address that
// the node does not have, is none.
func listening(addr netip.Addr, proto uint8, port uint16) bool {
	at := net.JoinHostPort(addr.String(), strconv.Itoa(int(port)))
	var lc net.ListenConfig
	switch proto {
	case unix.IPPROTO_TCP:
		l, err := lc.Listen(context.Background(), "tcp", at)
		if err == nil {
			_ = l.Close()
		}
		return errors.Is(err, unix.EADDRINUSE)
	case unix.IPPROTO_UDP:
		l, err := lc.ListenPacket(context.Background(), "udp", at)
		if err == nil {
			_ = l.Close()
		}
		return errors.Is(err, unix.EADDRINUSE)
	}
	return false
}
