// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"

	"keelson/network/nft"
)

// Formats of the names of maps.
const (
	mapFmt  = "%s%d" // egress4, ingress6
	selfFmt = "self%d"
)

// priority of the forward chain: before the filter chains of other programs.
const priority = -5

// view holds the packet fields of a connection's client and server, by family. port is the field of the server's port.
type view struct {
	client, server map[int]nft.Field
	port           nft.Field
	// next is the chain that checks the server's side.
	next string
	// suffix distinguishes the chains of the two views.
	suffix string
}

var (
	saddr = map[int]nft.Field{4: nft.IPSaddr, 6: nft.IP6Saddr}
	daddr = map[int]nft.Field{4: nft.IPDaddr, 6: nft.IP6Daddr}
	// opening is for packets from client to server, after DNAT; replying is for replies, before the reverse
	// translation.
	opening = view{
		client: saddr,
		server: daddr,
		port:   nft.THDport,
		next:   "server",
	}
	replying = view{
		client: daddr,
		server: saddr,
		port:   nft.THSport,
		next:   "served",
		suffix: "-r",
	}
	views = []view{opening, replying}
)

var families = []int{4, 6}

func addrType(family int) nft.Type {
	if family == 6 {
		return nft.IPv6
	}
	return nft.IPv4
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

func mapName(d Direction, family int) string { return fmt.Sprintf(mapFmt, d, family) }
func selfName(family int) string             { return fmt.Sprintf(selfFmt, family) }
func setName(set string, family int) string  { return fmt.Sprintf("%s-%d", set, family) }

// Table returns the plan as an nftables table.
func Table(name string, plan *Plan) *nft.Table {
	table := nft.NewTable(name)
	delta := baseChains()
	for dir := range directions {
		for a, chain := range plan.Isolated[dir] {
			delta.PutElement(mapName(dir, familyOf(a)), nft.Addr(a), nft.ToChain(chain))
			delta.PutElement(selfName(familyOf(a)), nft.Addr(a)+nft.Addr(a), "")
		}
	}
	for _, c := range plan.Chains {
		putChain(delta, c)
	}
	for _, s := range plan.Sets {
		putSet(delta, s)
		for e := range s.Elements {
			delta.PutElement(setName(s.Name, familyOf(e.Addr)), elementKey(s.Kind, e), "")
		}
	}
	delta.Apply(table)
	return table
}

// baseChains returns the part of the table that does not depend on policies.
func baseChains() *nft.Delta {
	delta := &nft.Delta{Sets: map[string]nft.Set{}, DropSets: map[string]bool{}}
	forward := nft.Chain{
		Name:     "forward",
		Type:     nft.Filter,
		Hook:     nft.Forward,
		Priority: priority,
	}
	forward.Rules = append(forward.Rules,
		nft.Rule{nft.State(nft.Related), nft.Accept()}, // ICMP errors of a connection
		nft.Rule{nft.Replying(), nft.Goto("replies")})
	chains := []*nft.Chain{&forward, {Name: "replies"}}
	for i, v := range views {
		next := nft.Chain{Name: v.next}
		for _, f := range families {
			chains[i].Rules = append(chains[i].Rules, nft.Rule{nft.Vmap(mapName(Egress, f), v.client[f])})
			next.Rules = append(next.Rules, nft.Rule{nft.Vmap(mapName(Ingress, f), v.server[f])})
		}
		chains[i].Rules = append(chains[i].Rules, nft.Rule{nft.Goto(v.next)})
		next.Rules = append(next.Rules, nft.Rule{nft.Accept()})
		delta.PutChain(*chains[i])
		delta.PutChain(next)
	}
	for _, f := range families {
		for dir := range directions {
			delta.Sets[mapName(dir, f)] = nft.Set{Name: mapName(dir, f), Key: []nft.Type{addrType(f)}, Verdicts: true}
		}
		delta.Sets[selfName(f)] = nft.Set{Name: selfName(f), Key: []nft.Type{addrType(f), addrType(f)}}
	}
	return delta
}

// putChain adds a chain's rules for both views.
func putChain(d *nft.Delta, c *Chain) {
	for _, v := range views {
		putView(d, c, v)
	}
}

// putView adds a chain's rules for one view. Packets that egress of the client allows continue with ingress of the
// server, which accepts them.
func putView(delta *nft.Delta, chain *Chain, v view) {
	allow := nft.Accept()
	if chain.Direction == Egress {
		allow = nft.Goto(v.next)
	}
	main := nft.Chain{Name: chain.Name + v.suffix}
	if v.suffix == "" {
		main.Rules = append(main.Rules, nft.Rule{nft.Replying(), nft.Goto(chain.Name + replying.suffix)})
	}
	for i := range chain.Rules {
		r := &chain.Rules[i]
		for _, e := range r.Endpoints {
			for _, f := range families {
				main.Rules = append(main.Rules,
					nft.Rule{nft.In(setName(e, f), v.server[f], nft.MetaL4Proto, v.port), allow})
			}
		}
		peers := v.peers(chain.Direction, r)
		ports := v.ports(r)
		if !crossed(r) {
			for _, port := range ports {
				for _, peer := range peers {
					main.Rules = append(main.Rules, join(port, peer, allow))
				}
			}
			continue
		}
		inner := nft.Chain{Name: innerName(chain, v, i)}
		for _, peer := range peers {
			inner.Rules = append(inner.Rules, join(peer, nil, allow))
		}
		for _, port := range ports {
			main.Rules = append(main.Rules, join(port, nil, nft.Jump(inner.Name)))
		}
		delta.PutChain(inner)
	}
	for _, f := range families {
		main.Rules = append(main.Rules, nft.Rule{nft.In(selfName(f), saddr[f], daddr[f]), nft.Accept()})
	}
	main.Rules = append(main.Rules, nft.Rule{nft.Counter(), nft.Drop()})
	delta.PutChain(main)
}

// crossed reports whether a rule has several peers and several ports. It takes two chains, one for peers and one for
// ports.
func crossed(r *Rule) bool {
	ports := len(r.PortSets)
	if ports == 0 {
		ports = len(r.Ports)
	}
	return r.Peers != "" && r.Blocks != "" && ports > 1
}

func innerName(c *Chain, v view, rule int) string {
	return fmt.Sprintf("%s%s-%d", c.Name, v.suffix, rule)
}

func dropChain(d *nft.Delta, c *Chain) {
	for _, v := range views {
		d.DropChain(c.Name + v.suffix)
		for i := range c.Rules {
			if crossed(&c.Rules[i]) {
				d.DropChain(innerName(c, v, i))
			}
		}
	}
}

func join(a, b nft.Rule, last nft.Statement) nft.Rule {
	out := make(nft.Rule, 0, len(a)+len(b)+1)
	return append(append(append(out, a...), b...), last)
}

// peers returns alternative matches of the peer, as starts of rules.
func (v view) peers(dir Direction, r *Rule) []nft.Rule {
	if r.AnyPeer {
		return []nft.Rule{nil}
	}
	var out []nft.Rule
	for _, s := range []string{r.Peers, r.Blocks} {
		if s == "" {
			continue
		}
		for _, f := range families {
			field := v.client[f]
			if dir == Egress {
				field = v.server[f]
			}
			out = append(out, nft.Rule{nft.In(setName(s, f), field)})
		}
	}
	return out
}

// ports returns alternative matches of the server's port.
func (v view) ports(r *Rule) []nft.Rule {
	if r.AnyPort {
		return []nft.Rule{nil}
	}
	var out []nft.Rule
	for _, p := range r.PortSets {
		out = append(out, nft.Rule{nft.Is(nft.MetaL4Proto, nft.Proto(p.Proto)), nft.In(p.Name, v.port)})
	}
	if len(out) > 0 {
		return out
	}
	for _, p := range r.Ports {
		rule := nft.Rule{nft.Is(nft.MetaL4Proto, nft.Proto(p.Proto))}
		switch {
		case p.From == p.To:
			rule = append(rule, nft.Is(v.port, nft.PortNumber(p.From)))
		case p.From > 0 || p.To < maxPort:
			rule = append(rule, nft.Between(v.port, nft.PortNumber(p.From), nft.PortNumber(p.To)))
		}
		out = append(out, rule)
	}
	return out
}

// putSet adds a set with its spans and ports, but without its elements.
func putSet(delta *nft.Delta, s *Set) {
	if s.Kind == Ports {
		delta.PutSet(nft.Set{Name: s.Name, Key: []nft.Type{nft.Port}, Interval: true})
		for _, r := range s.Ports {
			delta.PutElement(s.Name, nft.RangeKey(nft.Range(nft.PortNumber(r.From), nft.PortNumber(r.To))), "")
		}
		return
	}
	for _, f := range families {
		set := nft.Set{Name: setName(s.Name, f), Key: []nft.Type{addrType(f)}, Interval: s.Kind == Blocks}
		if s.Kind == Endpoints {
			set.Key = append(set.Key, nft.L4Proto, nft.Port)
		}
		delta.PutSet(set)
	}
	for _, span := range s.Spans {
		delta.PutElement(setName(s.Name, familyOf(span.From)),
			nft.RangeKey(nft.Range(nft.Addr(span.From), nft.Addr(span.To))), "")
	}
}

func dropSet(d *nft.Delta, s *Set) {
	if s.Kind == Ports {
		d.DropSet(s.Name)
		return
	}
	for _, f := range families {
		d.DropSet(setName(s.Name, f))
	}
}

func elementKey(k SetKind, e Element) string {
	if k == Endpoints {
		return nft.Addr(e.Addr) + nft.Proto(e.Proto) + nft.PortNumber(e.Port)
	}
	return nft.Addr(e.Addr)
}

// Drain returns the change of the table since the last Drain.
func (s *State) Drain() *nft.Delta {
	delta := &nft.Delta{Sets: map[string]nft.Set{}, DropSets: map[string]bool{}}
	for name, before := range s.log.chains {
		now := s.chains.all[name]
		switch {
		case before == nil && now != nil:
			putChain(delta, &now.Chain)
		case before != nil && now == nil:
			dropChain(delta, before)
		}
	}
	for name, before := range s.log.sets {
		now := s.sets.all[name]
		switch {
		case before == nil && now != nil:
			putSet(delta, now)
		case before != nil && now == nil:
			dropSet(delta, before)
		}
	}
	for name, touched := range s.log.elements {
		set := s.sets.all[name]
		if set == nil {
			continue // the set is deleted with its elements
		}
		for e, before := range touched {
			has := set.Elements[e] > 0
			switch {
			case has && !before:
				delta.PutElement(setName(name, familyOf(e.Addr)), elementKey(set.Kind, e), "")
			case !has && before:
				delta.DropElement(setName(name, familyOf(e.Addr)), elementKey(set.Kind, e))
			}
		}
	}
	s.drainIsolated(delta)
	*s.log = *newJournal()
	return delta
}

// drainIsolated updates the maps from addresses to chains.
func (s *State) drainIsolated(delta *nft.Delta) {
	for dir := range directions {
		for a, before := range s.log.isolated[dir] {
			now := s.isolated[dir][a]
			switch now {
			case before:
			case "":
				delta.DropElement(mapName(dir, familyOf(a)), nft.Addr(a))
			default:
				delta.PutElement(mapName(dir, familyOf(a)), nft.Addr(a), nft.ToChain(now))
			}
		}
	}
	was := func(dir Direction, a netip.Addr) bool {
		if before, touched := s.log.isolated[dir][a]; touched {
			return before != ""
		}
		return s.isolated[dir][a] != ""
	}
	for dir := range directions {
		for a := range s.log.isolated[dir] {
			before := was(Ingress, a) || was(Egress, a)
			now := s.isolated[Ingress][a] != "" || s.isolated[Egress][a] != ""
			switch {
			case now && !before:
				delta.PutElement(selfName(familyOf(a)), nft.Addr(a)+nft.Addr(a), "")
			case !now && before:
				delta.DropElement(selfName(familyOf(a)), nft.Addr(a)+nft.Addr(a))
			}
		}
	}
}
