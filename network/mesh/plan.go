// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Mode is the way in which packets reach other machines.
type Mode string

// Auto uses a tunnel only for machines that are not on the same link, Tunnel for all, None for none. WireGuard uses an
// encrypted tunnel for all; machines without one are not reachable.
const (
	Auto      Mode = "auto"
	Tunnel    Mode = "vxlan"
	WireGuard Mode = "wireguard"
	None      Mode = "none"
)

// Modes lists all modes.
var Modes = []Mode{Auto, Tunnel, WireGuard, None}

// UDP ports of the tunnel.
const (
	vxlanPort     = 8472
	wireGuardPort = 51820
)

// DefaultPort returns the default UDP port of the tunnel.
func (m Mode) DefaultPort() int {
	if m == WireGuard {
		return wireGuardPort
	}
	return vxlanPort
}

// Machine is one machine of the cluster.
type Machine struct {
	Name string
	// Since is when it joined the cluster.
	Since time.Time
	// Addrs are its addresses, Pods its pod ranges, at most one of each IP family.
	Addrs []netip.Addr
	Pods  []netip.Prefix
	// VTEP is the MAC address of its VXLAN endpoint; nil: none.
	VTEP net.HardwareAddr
	// Key is its WireGuard public key, Port its UDP port; zero: none.
	Key  Key
	Port uint16
	// Start names the start of its WireGuard: sessions from before are lost.
	Start string
}

// Families returns the pod ranges whose IP family is also one of ranges.
func Families(pods, ranges []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ranges), func(q netip.Prefix) bool {
		_, ok := gatewayFor(Machine{Pods: pods}, q)
		return !ok
	})
}

// Link is a link of this machine with its addresses.
type Link struct {
	Name  string
	Index int
	MTU   int
	Addrs []netip.Prefix
}

// Route is a route to another machine's pods.
type Route struct {
	Dst netip.Prefix
	// Via is the gateway; invalid: the route has none.
	Via netip.Addr
	// Link is the index of the link; 0: the tunnel.
	Link int
	// Src is the preferred source address.
	Src netip.Addr
}

// Peer is a machine behind the tunnel. It has a VTEP, or a key and a port.
type Peer struct {
	VTEP net.HardwareAddr
	Key  Key
	At   netip.Addr
	Port uint16
	// Start is its Machine's.
	Start string
	// Inner are its gateway addresses, which are its addresses in the tunnel. Pods are its pod ranges.
	Inner []netip.Addr
	Pods  []netip.Prefix
}

// Plan is the desired state of the kernel.
type Plan struct {
	Routes []Route
	Peers  []Peer
	// Local is the tunnel's local address, on a link of MTU Outer; both zero: no tunnel, except for WireGuard, which
	// needs no local address.
	Local netip.Addr
	Outer int
	// Encrypted: the tunnel is WireGuard. Inner are this machine's addresses in it.
	Encrypted bool
	Inner     []netip.Addr
	// Blocked are ranges to which packets may be sent by the tunnel only. Packets from Sealed to a pod of Own or to the
	// machine are accepted only from the tunnel or from a pod of this machine.
	Blocked, Sealed, Own []netip.Prefix
	// PodMTU is the largest MTU that works to the pods of every other machine; 0: unknown.
	PodMTU int
	// Cluster are the destinations without masquerading.
	Cluster []netip.Prefix
	// Unreached are the unreachable machines, with the reason.
	Unreached []string
}

// Overhead returns the bytes that the tunnel adds to each packet.
func (p Plan) Overhead() int {
	n := 50
	if p.Encrypted {
		n = 60
	}
	if p.Local.Is6() {
		n += 20
	}
	return n
}

// New computes the plan of machine self. links are its links, others the other machines, cluster the known pod ranges
// of the cluster. If machines have the same pod range or key, the oldest one gets it.
func New(mode Mode, self Machine, links []Link, others []Machine, cluster []netip.Prefix) Plan {
	plan := Plan{Encrypted: mode == WireGuard}
	if plan.Encrypted {
		plan.Blocked = Families(self.Pods, cluster)
	}
	plan.Cluster = append(plan.Cluster, self.Pods...)
	up, at := uplink(self, links)
	if up != nil {
		plan.PodMTU = up.MTU
	}
	others = slices.Clone(others)
	slices.SortFunc(others, func(a, b Machine) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	taken := slices.Clone(self.Pods)
	for _, machine := range others {
		if machine.Name == self.Name || len(machine.Pods) == 0 {
			continue
		}
		if slices.ContainsFunc(machine.Addrs, func(a netip.Addr) bool { return local(a, links) }) {
			continue // another node on this machine: its pods are local
		}
		why := wrongRange(machine, links, others, taken)
		if why == "" {
			if plan.Encrypted {
				plan.Blocked = append(plan.Blocked, Families(self.Pods, machine.Pods)...)
			}
			why = plan.add(mode, self, machine, links, at, up)
		}
		if why != "" {
			plan.Unreached = append(plan.Unreached, machine.Name+": "+why)
			continue
		}
		taken = append(taken, machine.Pods...)
		plan.Cluster = append(plan.Cluster, machine.Pods...)
	}
	if (mode == Tunnel || mode == WireGuard) && up != nil && at.IsValid() {
		plan.Local = at
		plan.Outer = up.MTU
	}
	if plan.Local.IsValid() {
		plan.PodMTU = plan.Outer - plan.Overhead()
	}
	if plan.Encrypted {
		for _, q := range self.Pods {
			plan.Inner = append(plan.Inner, gateway(q))
		}
		plan.Own = self.Pods
		plan.Sealed = apartFrom(links, slices.Concat(self.Pods, plan.Blocked))
	}
	return plan
}

// apartFrom returns the ranges that contain no address of a link.
func apartFrom(links []Link, ranges []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(ranges, func(q netip.Prefix) bool {
		return slices.ContainsFunc(links, func(l Link) bool {
			return slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return q.Contains(a.Addr()) })
		})
	})
}

// wrongRange returns why nothing must be sent to a machine's pod ranges: another node has one, or it contains addresses
// of machines. "": no reason.
func wrongRange(m Machine, links []Link, others []Machine, taken []netip.Prefix) string {
	for _, prefix := range m.Pods {
		if overlaps(prefix, taken) {
			return fmt.Sprintf("its pod range %s belongs to another node", prefix)
		}
	}
	for _, prefix := range m.Pods {
		for _, l := range links {
			for _, a := range l.Addrs {
				if prefix.Contains(a.Addr()) {
					return fmt.Sprintf("its pod range %s has this machine's address %s", prefix, a.Addr())
				}
			}
		}
		for _, o := range others {
			for _, a := range o.Addrs {
				if prefix.Contains(a) {
					return fmt.Sprintf("its pod range %s has the address %s of node %s", prefix, a, o.Name)
				}
			}
		}
	}
	return ""
}

// noKey returns why m must not be reached, because of its key; "": no reason.
func (p *Plan) noKey(mode Mode, self, m Machine) string {
	switch {
	case mode != WireGuard && m.Key != (Key{}):
		return "it wants WireGuard, and this node runs with --tunnel=" + string(mode)
	case mode != WireGuard:
		return ""
	case m.Key == (Key{}) || m.Port == 0:
		return "it has no WireGuard key, and without nothing is sent: it needs --tunnel=wireguard"
	case m.Key == self.Key || slices.ContainsFunc(p.Peers, func(q Peer) bool { return q.Key == m.Key }):
		return "its WireGuard key is another node's too: one of them is a copy and needs its own"
	}
	return ""
}

// add adds one machine to the plan; the result is why it is unreachable.
func (p *Plan) add(mode Mode, self, machine Machine, links []Link, at netip.Addr, up *Link) string {
	if why := p.noKey(mode, self, machine); why != "" {
		return why
	}
	if mode == Auto || mode == None {
		if routes, ok := direct(self, machine, links); ok {
			p.Routes = append(p.Routes, routes...)
			for _, a := range machine.Addrs {
				p.Cluster = append(p.Cluster, netip.PrefixFrom(a, a.BitLen()))
			}
			return ""
		}
	}
	switch {
	case mode == None:
		return "it is no neighbour on any link, and there are no tunnels"
	case mode != WireGuard && machine.VTEP == nil:
		return "it has no end of a tunnel"
	case mode != WireGuard && up == nil:
		return "no link of this machine has this node's address"
	}
	i := slices.IndexFunc(machine.Addrs, func(a netip.Addr) bool { return !at.IsValid() || a.Is4() == at.Is4() })
	if i < 0 {
		return strings.TrimSuffix(fmt.Sprintf("it has no address of the family of %s", at),
			" of the family of invalid IP")
	}
	peer, routes := behindTunnel(mode, self, machine, machine.Addrs[i])
	if len(routes) == 0 {
		return "its pods have no address of a family that pods here have"
	}
	p.Peers = append(p.Peers, peer)
	p.Routes = append(p.Routes, routes...)
	if up != nil {
		p.Local = at
		p.Outer = up.MTU
	}
	return ""
}

// behindTunnel returns a machine as a peer, which gets the tunnel's packets at its address at, and the routes to it.
func behindTunnel(mode Mode, self, machine Machine, at netip.Addr) (Peer, []Route) {
	peer := Peer{VTEP: machine.VTEP, At: at}
	if mode == WireGuard {
		peer = Peer{
			Key:   machine.Key,
			Port:  machine.Port,
			At:    at,
			Start: machine.Start,
		}
	}
	var routes []Route
	for _, dst := range machine.Pods {
		src, ok := gatewayFor(self, dst)
		if !ok {
			continue // pods of this machine do not have the family
		}
		r := Route{Dst: dst.Masked(), Via: gateway(dst), Src: src}
		peer.Inner = append(peer.Inner, r.Via)
		peer.Pods = append(peer.Pods, r.Dst)
		if mode == WireGuard {
			r.Via = netip.Addr{} // WireGuard selects the peer by its allowed IPs
		}
		routes = append(routes, r)
	}
	return peer, routes
}

// direct returns routes over links that both machines are on.
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
		out = append(out, Route{
			Dst:  dst.Masked(),
			Via:  via,
			Link: link,
			Src:  src,
		})
	}
	return out, len(out) > 0
}

// neighbour finds an address of the family in the subnet of a link of this machine.
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

// uplink returns the first of the machine's addresses that is on a link, and that link.
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

// gateway returns the address of a machine in its pod range.
func gateway(pods netip.Prefix) netip.Addr { return pods.Masked().Addr().Next() }

// gatewayFor returns this machine's gateway in the family of dst.
func gatewayFor(self Machine, dst netip.Prefix) (netip.Addr, bool) {
	for _, p := range self.Pods {
		if p.Addr().Is4() == dst.Addr().Is4() {
			return gateway(p), true
		}
	}
	return netip.Addr{}, false
}
