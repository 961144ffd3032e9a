// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The table of each IP family, in nft's syntax (here for IPv4):
//
//	table ip keelson-ID {
//	    map hostports     { type inet_proto . inet_service : ipv4_addr . inet_service }
//	    map hostports-ip  { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	    set hairpin       { type ipv4_addr . ipv4_addr }
//	    set own           { type inet_service }
//	    set cluster       { type ipv4_addr; flags interval }
//	    chain hostports   { th dport @own return
//	                        dnat ip to ip daddr . meta l4proto . th dport map @hostports-ip
//	                        dnat ip to meta l4proto . th dport map @hostports }
//	    chain prerouting  { type nat hook prerouting priority dstnat;  fib daddr type local jump hostports }
//	    chain output      { type nat hook output priority -100;        fib daddr type local jump hostports }
//	    chain postrouting { type nat hook postrouting priority srcnat
//	                        oifgroup PODS ip saddr 127.0.0.0/8 snat to GATEWAY
//	                        oifgroup PODS ip saddr . ip daddr @hairpin snat to GATEWAY
//	                        ip saddr RANGE ip daddr != @cluster ip daddr != 224.0.0.0/4 masquerade }
//	    chain guard       { type filter hook prerouting priority raw;   iifgroup PODS ip daddr 127.0.0.0/8 drop }
//	    chain redirects   { type filter hook output priority filter;    oifgroup PODS icmp type redirect drop }
//	    chain forward     { type filter hook forward priority filter - 10
//	                        oifname TUNNEL tcp flags syn tcp option maxseg size set rt mtu
//	                        iifgroup PODS accept; oifgroup PODS accept }
//	}
//
// own holds the reserved ports of the node (Reserve): host ports of pods do not apply to them.
//
// cluster holds the destinations without masquerading (SetCluster): the pod ranges of all nodes, and the nodes.
//
// hairpin holds each pod with host ports, paired with itself: if a pod connects to itself by its host port, it would
// drop packets from its own address, so they are sent from the gateway. All other connections keep their source
// address.
//
// guard drops packets of pods to the node's loopback, which route_localnet on their links would allow; in IPv6 it drops
// packets with another source than the pod's address, as rp_filter does in IPv4. redirects drops ICMP redirects to
// pods, for which there is no shorter path.

var (
	anyKey   = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	loopNet  = netip.MustParsePrefix("127.0.0.0/8")
	loopNet6 = netip.MustParsePrefix("::1/128")
)

// familyExprs holds the constants of a family in nftables expressions.
type familyExprs struct {
	table     nftables.TableFamily
	addr      nftables.SetDatatype
	len       uint32 // of an address
	src, dst  uint32 // offsets in the header
	after     uint32 // the 4-byte register after an address in reg1
	number    uint32 // of the family in nat
	loop      netip.Prefix
	multicast netip.Prefix
	icmp      byte
	redirect  byte
}

func (f family) exprs() familyExprs {
	if f.is4() {
		return familyExprs{
			table:     nftables.TableFamilyIPv4,
			addr:      nftables.TypeIPAddr,
			len:       4,
			src:       12,
			dst:       16,
			after:     ctAddr + 1,
			number:    unix.NFPROTO_IPV4,
			loop:      loopNet,
			multicast: netip.MustParsePrefix("224.0.0.0/4"),
			icmp:      unix.IPPROTO_ICMP,
			redirect:  5,
		}
	}
	return familyExprs{
		table:     nftables.TableFamilyIPv6,
		addr:      nftables.TypeIP6Addr,
		len:       16,
		src:       8,
		dst:       24,
		after:     ctAddr + 4,
		number:    unix.NFPROTO_IPV6,
		loop:      loopNet6,
		multicast: netip.MustParsePrefix("ff00::/8"),
		icmp:      unix.IPPROTO_ICMPV6,
		redirect:  137,
	}
}

// rules holds the table and its sets.
type rules struct {
	familyExprs
	table        *nftables.Table
	any, one     *nftables.Set
	hairpin      *nftables.Set
	own, cluster *nftables.Set
}

// rulesOf returns the table of a family, with its sets. With making they have ids, by which the transaction that makes
// them refers to them.
func rulesOf(name string, f family, making bool) rules {
	familyExprs := f.exprs()
	table := &nftables.Table{Name: name, Family: familyExprs.table}
	target := nftables.MustConcatSetType(familyExprs.addr, nftables.TypeInetService)
	ports := func(name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table:         table,
			Name:          name,
			IsMap:         true,
			Concatenation: true,
			KeyType:       key,
			DataType:      target,
		}
	}
	r := rules{
		familyExprs: familyExprs,
		table:       table,
		any:         ports("hostports", anyKey),
		one: ports("hostports-ip",
			nftables.MustConcatSetType(familyExprs.addr, nftables.TypeInetProto, nftables.TypeInetService)),
		hairpin: &nftables.Set{
			Table:         table,
			Name:          "hairpin",
			Concatenation: true,
			KeyType:       nftables.MustConcatSetType(familyExprs.addr, familyExprs.addr),
		},
		own:     &nftables.Set{Table: table, Name: "own", KeyType: nftables.TypeInetService},
		cluster: &nftables.Set{Table: table, Name: "cluster", KeyType: familyExprs.addr, Interval: true},
	}
	if making {
		first := uint32(0)
		if !f.is4() {
			first = 16
		}
		for i, s := range []*nftables.Set{r.any, r.one, r.hairpin, r.own, r.cluster} {
			s.ID = first + uint32(i) + 1 // one to five
		}
	}
	return r
}

// chainMaker adds the chains and rules of one family's table to a transaction.
type chainMaker struct {
	rules
	nft      *nftables.Conn
	family   family
	fromPods []expr.Any
	toPods   []expr.Any
}

func (m *chainMaker) chain(
	name string, typ nftables.ChainType, hook *nftables.ChainHook, prio nftables.ChainPriority,
) *nftables.Chain {
	return m.nft.AddChain(&nftables.Chain{
		Name:     name,
		Table:    m.table,
		Type:     typ,
		Hooknum:  hook,
		Priority: new(prio),
	})
}

func (m *chainMaker) rule(ch *nftables.Chain, parts ...[]expr.Any) {
	m.nft.AddRule(&nftables.Rule{Table: m.table, Chain: ch, Exprs: slices.Concat(parts...)})
}

// translate adds the chains of host ports: what is sent to one of this node's addresses goes to the pod.
func (m *chainMaker) translate() {
	ports := m.nft.AddChain(&nftables.Chain{Name: "hostports", Table: m.table})
	m.rule(ports, m.lookupOwn(), verdict(expr.VerdictReturn))
	m.rule(ports, m.lookupOne(), m.dnat())
	m.rule(ports, m.lookupAny(), m.dnat())
	jump := []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "hostports"}}
	pre := m.chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest)
	m.rule(pre, toLocal(), jump)
	out := m.chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest)
	if m.family.is4() {
		m.rule(out, toLocal(), jump)
	} else { // IPv6 has no route_localnet: packets to ::1 cannot leave the node
		m.rule(out, m.inPrefix(m.dst, m.loop, expr.CmpOpNeq), toLocal(), jump)
	}
}

// changeSources adds the chain that changes packets' source addresses.
func (m *chainMaker) changeSources(masquerade bool) {
	post := m.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
		*nftables.ChainPriorityNATSource)
	m.rule(post, m.toPods, m.inPrefix(m.src, m.loop, expr.CmpOpEq), m.snat(m.family.gateway))
	m.rule(post, m.toPods, m.lookupHairpin(), m.snat(m.family.gateway))
	if masquerade {
		m.rule(post, m.inPrefix(m.src, m.family.pods, expr.CmpOpEq), m.notInCluster(),
			m.inPrefix(m.dst, m.multicast, expr.CmpOpNeq), []expr.Any{&expr.Masq{}})
	}
}

// filter adds the chains that drop and accept; tunnel is the link to other machines.
func (m *chainMaker) filter(tunnel string) {
	drop := verdict(expr.VerdictDrop)
	guard := m.chain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw)
	m.rule(guard, m.fromPods, m.inPrefix(m.dst, m.loop, expr.CmpOpEq), drop)
	if !m.family.is4() {
		m.rule(guard, m.fromPods, m.inPrefix(m.src, netip.MustParsePrefix("fe80::/10"), expr.CmpOpNeq),
			m.inPrefix(m.src, netip.MustParsePrefix("::/128"), expr.CmpOpNeq), reversePathFails(), drop)
	}
	redirects := m.chain("redirects", nftables.ChainTypeFilter, nftables.ChainHookOutput, *nftables.ChainPriorityFilter)
	m.rule(redirects, m.toPods, m.isRedirect(), drop)
	forward := m.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward,
		*nftables.ChainPriorityFilter-10)
	m.rule(forward, linkNamed(expr.MetaKeyOIFNAME, tunnel), clampMSS())
	m.rule(forward, m.fromPods, verdict(expr.VerdictAccept))
	m.rule(forward, m.toPods, verdict(expr.VerdictAccept))
}
