// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
	"keelson/proxy/services"
)

// stale matches conntrack entries (flows) of UDP whose destination is not an endpoint of the Service any more. They
// must be deleted: an entry does not expire while it sees packets.
type stale struct {
	fronts map[netip.AddrPort]map[netip.AddrPort]bool // frontend -> valid endpoints
	ports  map[uint16]map[netip.AddrPort]bool         // the same by node port
	// ours reports whether the node has an address, so that the flow is to a node port of this node.
	ours func(netip.Addr) bool
}

// MatchConntrackFlow reports whether the flow must be deleted.
func (s *stale) MatchConntrackFlow(conntrackFlow *netlink.ConntrackFlow) bool {
	if conntrackFlow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok1 := netip.AddrFromSlice(conntrackFlow.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(conntrackFlow.Reverse.SrcIP)
	if !ok1 || !ok2 {
		return false
	}
	to = to.Unmap()
	right, known := s.fronts[netip.AddrPortFrom(to, conntrackFlow.Forward.DstPort)]
	if !known {
		right, known = s.ports[conntrackFlow.Forward.DstPort]
		known = known && s.ours(to)
	}
	return known && !right[netip.AddrPortFrom(from.Unmap(), conntrackFlow.Reverse.SrcPort)]
}

// deleteFlows deletes the conntrack entries that a change makes stale.
func (p *Proxy) deleteFlows(c services.Change) {
	stale := staleFlows(c)
	if len(stale.fronts)+len(stale.ports) == 0 {
		return
	}
	h, err := p.netlink(unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE)
	if err != nil {
		p.log.Warn("delete stale conntrack entries of UDP", "err", err)
		return
	}
	defer h.Close()
	own := sync.OnceValue(func() map[netip.Addr]bool { return addressesOf(h) })
	stale.ours = func(a netip.Addr) bool { return own()[a] }
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := linux.Dump(func() (uint, error) {
			return h.ConntrackDeleteFilters(netlink.ConntrackTable, family, stale)
		}); err != nil && !errors.Is(err, unix.ENOENT) {
			p.log.Warn("delete stale conntrack entries of UDP", "err", err)
		}
	}
}

// staleFlows returns the match for flows that a change makes stale.
func staleFlows(c services.Change) *stale {
	s := &stale{fronts: map[netip.AddrPort]map[netip.AddrPort]bool{}, ports: map[uint16]map[netip.AddrPort]bool{}}
	for n, after := range c.After {
		before := c.Before[n]
		if before == nil {
			before = &services.Part{}
		}
		for _, port := range changed(before, after) {
			for _, f := range port.Fronts {
				s.fronts[f] = port.Serving
			}
			if port.NodePort != 0 {
				s.ports[port.NodePort] = port.Serving
			}
		}
	}
	return s
}

// changed returns the UDP ports that lost endpoints, got their first ones, are new, or were removed. Their endpoints
// are the current ones.
func changed(before, after *services.Part) []services.Port {
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
			old.Serving = nil
			out = append(out, old)
			continue
		}
		if lost(old.Serving, port.Serving) || len(old.Serving) == 0 && len(port.Serving) > 0 ||
			!slices.Equal(old.Fronts, port.Fronts) || old.NodePort != port.NodePort {
			port.Fronts = append(slices.Clip(port.Fronts), old.Fronts...)
			out = append(out, port)
		}
		if old.NodePort != port.NodePort {
			out = append(out, services.Port{NodePort: old.NodePort})
		}
	}
	for _, port := range now { // flows may exist from before the port, or from before a restart of the proxy
		out = append(out, port)
	}
	return out
}

func lost(before, after map[netip.AddrPort]bool) bool {
	for e := range before {
		if !after[e] {
			return true
		}
	}
	return false
}

// addressesOf returns the node's addresses.
func addressesOf(h *netlink.Handle) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	addrs, err := linux.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return out // flows to node ports stay until they end
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			out[ip.Unmap()] = true
		}
	}
	return out
}

// netlink opens sockets in the node's network namespace.
func (p *Proxy) netlink(families ...int) (*netlink.Handle, error) {
	if p.cfg.NetNS != 0 {
		return netlink.NewHandleAt(netns.NsHandle(p.cfg.NetNS), families...)
	}
	return netlink.NewHandle(families...)
}
