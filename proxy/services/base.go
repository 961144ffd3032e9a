// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"

	"keelson/network/nft"
)

// masqueradeBit is the mark bit for masquerading, the same as kube-proxy's.
const masqueradeBit = 0x4000

// Priorities of the base chains, relative to NAT.
const (
	beforeNAT = -110
	nat       = -100
	afterNAT  = -90
	sourceNAT = 100
)

// ipFamily holds what differs between IPv4 and IPv6: suffixes of names, types and fields.
type ipFamily struct {
	n            int
	addr         nft.Type
	saddr, daddr nft.Field
}

var families = [...]ipFamily{{4, nft.IPv4, nft.IPSaddr, nft.IPDaddr}, {6, nft.IPv6, nft.IP6Saddr, nft.IP6Daddr}}

func familyByNumber(family int) ipFamily {
	if family == 4 {
		return families[0]
	}
	return families[1]
}

// name returns a set's or chain's name in the family: "cluster4".
func (f ipFamily) name(what string) string { return fmt.Sprint(what, f.n) }

// front returns the operands of a frontend, the keys of maps; frontTypes their types.
func (f ipFamily) front() []nft.Operand   { return []nft.Operand{f.daddr, nft.MetaL4Proto, nft.THDport} }
func (f ipFamily) frontTypes() []nft.Type { return []nft.Type{f.addr, nft.L4Proto, nft.Port} }

var (
	portFront      = []nft.Operand{nft.MetaL4Proto, nft.THDport}
	portFrontTypes = []nft.Type{nft.L4Proto, nft.Port}
)

// Base returns the table without Services.
func Base(name string, node Node) *nft.Table {
	table := nft.NewTable(name)
	for _, f := range families {
		f.addSets(table)
		f.addChains(table)
	}
	table.AddChain(nft.Chain{
		Name: "refuse",
		Rules: []nft.Rule{
			{nft.Is(nft.MetaL4Proto, nft.Proto(protoTCP)), nft.Reset()},
			{nft.Unreachable()},
		},
	})
	table.AddChain(nft.Chain{Name: "services", Rules: serviceRules(node)})
	table.AddChain(nft.Chain{Name: "closed", Rules: closedRules(node)})
	if node.PodGroup != 0 {
		table.AddChain(nft.Chain{Name: "services-of-others", Rules: otherServiceRules(node)})
		table.AddChain(nft.Chain{Name: "closed-of-others", Rules: nodePortRules(node, "closedports")})
	}
	for _, hook := range []nft.Hook{nft.Prerouting, nft.Output} {
		addHook(table, hook)
	}
	table.AddChain(nft.Chain{
		Name:     "postrouting",
		Type:     nft.NAT,
		Hook:     nft.Postrouting,
		Priority: sourceNAT,
		Rules: []nft.Rule{
			{nft.Marked(masqueradeBit), nft.ClearMark(masqueradeBit), nft.Masquerade()},
			{nft.Translated(), nft.In("hairpin4", nft.IPSaddr, nft.IPDaddr), nft.Masquerade()},
			{nft.Translated(), nft.In("hairpin6", nft.IP6Saddr, nft.IP6Daddr), nft.Masquerade()},
		},
	})
	return table
}

// addHook adds the chains of a hook by which new connections come, in the order in which they pass them: may they pass,
// where do they go, and what was not sent on.
func addHook(table *nft.Table, hook nft.Hook) {
	table.AddChain(nft.Chain{
		Name:     "guard-" + string(hook),
		Type:     nft.Filter,
		Hook:     hook,
		Priority: beforeNAT,
		Rules: []nft.Rule{
			{nft.State(nft.New), nft.Vmap("guarded4", families[0].front()...)},
			{nft.State(nft.New), nft.Vmap("guarded6", families[1].front()...)},
		},
	})
	table.AddChain(nft.Chain{
		Name:     string(hook),
		Type:     nft.NAT,
		Hook:     hook,
		Priority: nat,
		Rules:    []nft.Rule{{nft.Jump("services")}},
	})
	table.AddChain(nft.Chain{
		Name:     "closed-" + string(hook),
		Type:     nft.Filter,
		Hook:     hook,
		Priority: afterNAT,
		Rules: []nft.Rule{
			{nft.State(nft.New), nft.Jump("closed")},
		},
	})
}

// Fronts returns a table with only the elements that may lead connections to addresses and TCP ports elsewhere. Their
// values are empty.
func Fronts(name string, at []netip.AddrPort) *nft.Table {
	table := Base(name, Node{})
	for _, a := range at {
		ip := a.Addr().Unmap()
		f := familyByNumber(familyOf(ip))
		for _, set := range []string{"external", "closed", "guarded"} {
			table.Put(f.name(set), nft.Addr(ip)+nft.Proto(protoTCP)+nft.PortNumber(a.Port()), "")
		}
		for _, set := range []string{"nodeports", "closedports"} {
			table.Put(f.name(set), nft.Proto(protoTCP)+nft.PortNumber(a.Port()), "")
		}
	}
	return table
}

func (f ipFamily) addSets(table *nft.Table) {
	front := f.frontTypes()
	target := []nft.Type{f.addr, nft.Port}
	with := func(ts []nft.Type, more nft.Type) []nft.Type { return append(append([]nft.Type{}, ts...), more) }
	for _, m := range []string{"cluster", "external", "closed", "guarded"} {
		table.AddSet(nft.Set{Name: f.name(m), Key: front, Verdicts: true})
	}
	for _, m := range []string{"nodeports", "closedports"} {
		table.AddSet(nft.Set{Name: f.name(m), Key: portFrontTypes, Verdicts: true})
	}
	for _, m := range []list{clusterAll, externalAll, externalLocal} {
		table.AddSet(nft.Set{Name: f.name(string(m)), Key: with(front, nft.Num), Data: target})
	}
	for _, m := range []list{nodePortAll, nodePortLocal} {
		table.AddSet(nft.Set{Name: f.name(string(m)), Key: with(portFrontTypes, nft.Num), Data: target})
	}
	table.AddSet(nft.Set{Name: f.name("cluster-ips"), Key: []nft.Type{f.addr}})
	table.AddSet(nft.Set{Name: f.name("hairpin"), Key: []nft.Type{f.addr, f.addr}})
	table.AddSet(nft.Set{Name: f.name("sources"), Key: with(front, f.addr), Interval: true})
}

func (f ipFamily) addChains(t *nft.Table) {
	t.AddChain(nft.Chain{
		Name: f.name("sources"),
		Rules: []nft.Rule{
			{nft.In(f.name("sources"), append(f.front(), f.saddr)...), nft.Return()},
			{nft.Drop()},
		},
	})
}

// serviceRules returns the rules that look up the frontend of a connection.
func serviceRules(node Node) []nft.Rule {
	out := otherClusters(node, "services-of-others")
	for _, f := range families {
		out = append(out,
			nft.Rule{nft.Vmap(f.name("cluster"), f.front()...)},
			nft.Rule{nft.Vmap(f.name("external"), f.front()...)})
	}
	return append(out, nodePortRules(node, "nodeports")...)
}

// otherClusters sends packets of other clusters' pods on this machine to another chain: they may have the same cluster
// IPs.
func otherClusters(node Node, chain string) []nft.Rule {
	if node.PodGroup == 0 {
		return nil
	}
	return []nft.Rule{{nft.OfOtherGroup(node.PodGroup), nft.Goto(chain)}}
}

// otherServiceRules returns serviceRules without cluster IPs.
func otherServiceRules(node Node) []nft.Rule {
	var out []nft.Rule
	for _, f := range families {
		out = append(out, nft.Rule{nft.Vmap(f.name("external"), f.front()...)})
	}
	return append(out, nodePortRules(node, "nodeports")...)
}

// closedRules returns the rules that reject packets to a frontend that DNAT did not change.
func closedRules(node Node) []nft.Rule {
	out := otherClusters(node, "closed-of-others")
	for _, f := range families {
		out = append(out,
			nft.Rule{nft.Vmap(f.name("closed"), f.front()...)},
			nft.Rule{nft.In(f.name("cluster-ips"), f.daddr), nft.Goto("refuse")})
	}
	return append(out, nodePortRules(node, "closedports")...)
}

// nodePortRules returns the rules that look up a map of node ports, for the addresses that serve them. ::1 does not:
// packets from it cannot leave the loopback interface.
func nodePortRules(node Node, set string) []nft.Rule {
	var out []nft.Rule
	for _, ipFamily := range families {
		look := nft.Vmap(ipFamily.name(set), portFront...)
		only := ofFamily(node.NodePortCIDRs, ipFamily.n)
		switch {
		case len(node.NodePortCIDRs) > 0:
			for _, p := range only {
				out = append(out, nft.Rule{nft.Within(ipFamily.daddr, p), nft.ToLocal(), look})
			}
		case ipFamily.n == 4:
			out = append(out, nft.Rule{nft.OfFamily(4), nft.ToLocal(), look})
		default:
			out = append(out, nft.Rule{nft.IsNot(ipFamily.daddr, nft.Addr(netip.IPv6Loopback())), nft.ToLocal(), look})
		}
	}
	return out
}
