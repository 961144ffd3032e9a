// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Mode says how packets reach machines.
type Mode string

// Auto takes a tunnel only for machines that are no neighbours, Tunnel for all, None for none.
const (
	Auto   Mode = "auto"
	Tunnel Mode = "vxlan"
	None   Mode = "none"
)

// Modes are all of them.
var Modes = []Mode{Auto, Tunnel, None}

// DefaultPort is the UDP port of the tunnel.
const DefaultPort = 8472

// Machine is one machine of the cluster.
type Machine struct {
	Name string
	// Addrs are its own, Pods its ranges of pod addresses, at most one of each IP family.
	Addrs []netip.Addr
	Pods  []netip.Prefix
	// VTEP is its end of the tunnel; nil: it has none.
	VTEP net.HardwareAddr
}

// Link is a link of this machine with its addresses.
type Link struct {
	Name  string
	Index int
	MTU   int
	Addrs []netip.Prefix
}

// Route leads to another machine's pods.
type Route struct {
	Dst netip.Prefix
	Via netip.Addr
	// Link is the index of the link; 0: the tunnel.
	Link int
	// Src is this machine's address for it.
	Src netip.Addr
}

// Peer is a machine behind the tunnel.
type Peer struct {
	VTEP net.HardwareAddr
	At   netip.Addr
	// Inner are its pods' gateways, which are its addresses within the tunnel.
	Inner []netip.Addr
}

// Plan is what the kernel should have.
type Plan struct {
	Routes []Route
	Peers  []Peer
	// Local is this machine's address of the tunnel, on a link of MTU Outer; both zero: there is no tunnel.
	Local netip.Addr
	Outer int
	// PodMTU is the longest packet that any other machine's pods can be sent in one piece; 0: not known.
	PodMTU int
	// Cluster is where pods are known by their own addresses.
	Cluster []netip.Prefix
	// Unreached are machines to which there is no way, with the reason.
	Unreached []string
}

// Overhead is what the tunnel adds to each packet.
func Overhead(at netip.Addr) int {
	if at.Is6() {
		return 70
	}
	return 50
}

// New plans the ways from self to the others. links are this machine's. Of machines that have the same range of pods, the first by name has it.
func New(mode Mode, self Machine, links []Link, others []Machine) Plan {
	var p Plan
	p.Cluster = append(p.Cluster, self.Pods...)
	up, at := uplink(self, links)
	if up != nil {
		p.PodMTU = up.MTU
	}
	others = slices.Clone(others)
	slices.SortFunc(others, func(a, b Machine) int { return cmp.Compare(a.Name, b.Name) })
	taken := slices.Clone(self.Pods)
	for _, m := range others {
		if m.Name == self.Name || len(m.Pods) == 0 {
			continue
		}
		if slices.ContainsFunc(m.Addrs, func(a netip.Addr) bool { return local(a, links) }) {
			continue // another node of this very machine: its pods are right here
		}
		if i := slices.IndexFunc(m.Pods, func(q netip.Prefix) bool { return overlaps(q, taken) }); i >= 0 {
			p.Unreached = append(p.Unreached, fmt.Sprintf("%s: its pod range %s belongs to another node", m.Name, m.Pods[i]))
			continue
		}
		why := p.add(mode, self, m, links, at, up)
		if why != "" {
			p.Unreached = append(p.Unreached, m.Name+": "+why)
			continue
		}
		taken = append(taken, m.Pods...)
		p.Cluster = append(p.Cluster, m.Pods...)
	}
	if mode == Tunnel && up != nil && at.IsValid() {
		p.Local, p.Outer = at, up.MTU
	}
	if p.Local.IsValid() {
		p.PodMTU = p.Outer - Overhead(p.Local)
	}
	return p
}

// add plans the way to one machine; the result is why there is none.
func (p *Plan) add(mode Mode, self, m Machine, links []Link, at netip.Addr, up *Link) string {
	if mode != Tunnel {
		if routes, ok := direct(self, m, links); ok {
			p.Routes = append(p.Routes, routes...)
			for _, a := range m.Addrs {
				p.Cluster = append(p.Cluster, netip.PrefixFrom(a, a.BitLen()))
			}
			return ""
		}
	}
	switch {
	case mode == None:
		return "it is no neighbour on any link, and there are no tunnels"
	case m.VTEP == nil:
		return "it has no end of a tunnel"
	case up == nil:
		return "no link of this machine has this node's address"
	}
	i := slices.IndexFunc(m.Addrs, func(a netip.Addr) bool { return a.Is4() == at.Is4() })
	if i < 0 {
		return fmt.Sprintf("it has no address of the family of %s", at)
	}
	peer := Peer{VTEP: m.VTEP, At: m.Addrs[i]}
	for _, dst := range m.Pods {
		src, ok := gatewayFor(self, dst)
		if !ok {
			continue // a family that pods here have not
		}
		inner := gateway(dst)
		peer.Inner = append(peer.Inner, inner)
		p.Routes = append(p.Routes, Route{Dst: dst.Masked(), Via: inner, Src: src})
	}
	if len(peer.Inner) == 0 {
		return "its pods have no address of a family that pods here have"
	}
	p.Peers = append(p.Peers, peer)
	p.Local, p.Outer = at, up.MTU
	return ""
}

// direct are routes over links that both machines are on.
func direct(self, m Machine, links []Link) ([]Route, bool) {
	var out []Route
	for _, dst := range m.Pods {
		src, ok := gatewayFor(self, dst)
		if !ok {
			continue
		}
		via, link := neighbour(m.Addrs, dst.Addr().Is4(), links)
		if link == 0 {
			return nil, false
		}
		out = append(out, Route{Dst: dst.Masked(), Via: via, Link: link, Src: src})
	}
	return out, len(out) > 0
}

// neighbour finds the address of the family that is on a link of this machine.
func neighbour(addrs []netip.Addr, four bool, links []Link) (netip.Addr, int) {
	for _, a := range addrs {
		if a.Is4() != four {
			continue
		}
		for _, l := range links {
			for _, p := range l.Addrs {
				if p.Bits() < p.Addr().BitLen() && p.Contains(a) {
					return a, l.Index
				}
			}
		}
	}
	return netip.Addr{}, 0
}

// uplink is the link that has the first of the machine's addresses which any link has.
func uplink(self Machine, links []Link) (*Link, netip.Addr) {
	for _, a := range self.Addrs {
		for i := range links {
			if slices.ContainsFunc(links[i].Addrs, func(p netip.Prefix) bool { return p.Addr() == a }) {
				return &links[i], a
			}
		}
	}
	return nil, netip.Addr{}
}

func local(a netip.Addr, links []Link) bool {
	for _, l := range links {
		if slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return true
		}
	}
	return false
}

func overlaps(p netip.Prefix, others []netip.Prefix) bool {
	return slices.ContainsFunc(others, p.Overlaps)
}

// gateway is the address of a machine in its own range.
func gateway(pods netip.Prefix) netip.Addr { return pods.Masked().Addr().Next() }

// gatewayFor is this machine's gateway in the family of dst.
func gatewayFor(self Machine, dst netip.Prefix) (netip.Addr, bool) {
	for _, p := range self.Pods {
		if p.Addr().Is4() == dst.Addr().Is4() {
			return gateway(p), true
		}
	}
	return netip.Addr{}, false
}
