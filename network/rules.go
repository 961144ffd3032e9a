// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"keelson/network/mesh"
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

const (
	reg1   = 1 // the first 16-byte register
	ctAddr = 8 // number of the first 4-byte register: reg1 is 8 to 11
)

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

// rules returns the table and sets. With making they have ids, by which the transaction that makes them refers to them.
func (n *Network) rules(f family, making bool) rules {
	familyExprs := f.exprs()
	table := &nftables.Table{Name: n.table, Family: familyExprs.table}
	oneKey := nftables.MustConcatSetType(familyExprs.addr, nftables.TypeInetProto, nftables.TypeInetService)
	target := nftables.MustConcatSetType(familyExprs.addr, nftables.TypeInetService)
	r := rules{
		familyExprs: familyExprs,
		table:       table,
		any: &nftables.Set{
			Table:         table,
			Name:          "hostports",
			IsMap:         true,
			Concatenation: true,
			KeyType:       anyKey,
			DataType:      target,
		},
		one: &nftables.Set{
			Table:         table,
			Name:          "hostports-ip",
			IsMap:         true,
			Concatenation: true,
			KeyType:       oneKey,
			DataType:      target,
		},
		hairpin: &nftables.Set{
			Table:         table,
			Name:          "hairpin",
			Concatenation: true,
			KeyType:       nftables.MustConcatSetType(familyExprs.addr, familyExprs.addr),
		},
		own: &nftables.Set{Table: table, Name: "own", KeyType: nftables.TypeInetService},
		cluster: &nftables.Set{
			Table:    table,
			Name:     "cluster",
			KeyType:  familyExprs.addr,
			Interval: true,
		},
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

// setUpRules replaces the tables in one transaction, so packets see the old rules or the new ones.
func (n *Network) setUpRules(k *kernel) error {
	k.nftMu.Lock()
	defer k.nftMu.Unlock()
	n.dropUnusedTable(k)
	for _, family := range n.families {
		rules := n.rules(family, true)
		k.nft.AddTable(rules.table) // deleting a missing table is an error
		k.nft.DelTable(rules.table)
		k.nft.AddTable(rules.table)
		e := n.elements(family)
		err := errors.Join(
			k.nft.AddSet(rules.any, e.any), k.nft.AddSet(rules.one, e.one), k.nft.AddSet(rules.hairpin, e.hairpin),
			k.nft.AddSet(rules.own, n.ownElements()), k.nft.AddSet(rules.cluster, n.clusterElements(family)))
		if err != nil {
			return fmt.Errorf("set up nftables: %w", err)
		}
		n.addChains(k.nft, family, rules)
	}
	if err := k.nft.Flush(); err != nil {
		return describeNftError(k, err)
	}
	return n.openForeignChains(k)
}

// dropUnusedTable removes the table of a family that the network does not have any more.
func (n *Network) dropUnusedTable(k *kernel) {
	for _, f := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		if n.has(f == nftables.TableFamilyIPv4) {
			continue
		}
		t := k.nft.AddTable(&nftables.Table{Name: n.table, Family: f})
		k.nft.DelTable(t)
		_ = k.nft.Flush() // a kernel without the family has no such table
	}
}

// describeNftError adds the missing kernel feature to an error, which the kernel does not report.
func describeNftError(k *kernel, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("set up nftables: not permitted (needs root): %w", err)
	}
	if missing := k.missingFeature(); missing != "" {
		return fmt.Errorf("this kernel has no %s, which the pod network needs: %w", missing, err)
	}
	return fmt.Errorf("set up nftables: %w", err)
}

func (n *Network) addChains(conn *nftables.Conn, f family, r rules) {
	chain := func(
		name string, typ nftables.ChainType, hook *nftables.ChainHook, prio nftables.ChainPriority,
	) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{
			Name:     name,
			Table:    r.table,
			Type:     typ,
			Hooknum:  hook,
			Priority: new(prio),
		})
	}
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		conn.AddRule(&nftables.Rule{Table: r.table, Chain: ch, Exprs: slices.Concat(parts...)})
	}
	verdict := func(v expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: v}} }
	fromPods := groupIs(expr.MetaKeyIIFGROUP, n.group)
	toPods := groupIs(expr.MetaKeyOIFGROUP, n.group)

	ports := conn.AddChain(&nftables.Chain{Name: "hostports", Table: r.table})
	rule(ports, lookupOwn(r.own), verdict(expr.VerdictReturn))
	rule(ports, r.lookupOne(), r.dnat())
	rule(ports, r.lookupAny(), r.dnat())
	jump := []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "hostports"}}
	pre := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest)
	rule(pre, toLocal(), jump)
	out := chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest)
	if f.is4() {
		rule(out, toLocal(), jump)
	} else { // IPv6 has no route_localnet: packets to ::1 cannot leave the node
		rule(out, r.inPrefix(r.dst, r.loop, expr.CmpOpNeq), toLocal(), jump)
	}
	post := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	rule(post, toPods, r.inPrefix(r.src, r.loop, expr.CmpOpEq), r.snat(f.gateway))
	rule(post, toPods, r.lookupHairpin(), r.snat(f.gateway))
	if n.masquerades() {
		rule(post, r.inPrefix(r.src, f.pods, expr.CmpOpEq), r.notInCluster(),
			r.inPrefix(r.dst, r.multicast, expr.CmpOpNeq), []expr.Any{&expr.Masq{}})
	}
	guard := chain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw)
	rule(guard, fromPods, r.inPrefix(r.dst, r.loop, expr.CmpOpEq), verdict(expr.VerdictDrop))
	if !f.is4() {
		rule(guard, fromPods, r.inPrefix(r.src, netip.MustParsePrefix("fe80::/10"), expr.CmpOpNeq),
			r.inPrefix(r.src, netip.MustParsePrefix("::/128"), expr.CmpOpNeq), reversePathFails(), verdict(
				expr.VerdictDrop))
	}
	redirects := chain("redirects", nftables.ChainTypeFilter, nftables.ChainHookOutput, *nftables.ChainPriorityFilter)
	rule(redirects, toPods, r.isRedirect(), verdict(expr.VerdictDrop))
	forward := chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter-10)
	rule(forward, linkNamed(expr.MetaKeyOIFNAME, mesh.LinkName(n.cfg.ID)), clampMSS())
	rule(forward, fromPods, verdict(expr.VerdictAccept))
	rule(forward, toPods, verdict(expr.VerdictAccept))
}

// masquerades reports whether this network masquerades its pods' packets: always, or with CNI plugins while pods of its
// own are attached.
func (n *Network) masquerades() bool { return !n.cfg.Plugins || len(n.Attached()) > 0 }

func (r rules) lookupAny() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1},
		&expr.Payload{
			DestRegister: ctAddr + 1,
			Base:         expr.PayloadBaseTransportHeader,
			Offset:       2,
			Len:          2,
		},
		&expr.Lookup{
			SourceRegister: reg1,
			DestRegister:   reg1,
			IsDestRegSet:   true,
			SetName:        r.any.Name,
			SetID:          r.any.ID,
		},
	}
}

func (r rules) lookupOne() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: r.dst, Len: r.len},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r.after},
		&expr.Payload{DestRegister: r.after + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{
			SourceRegister: reg1,
			DestRegister:   reg1,
			IsDestRegSet:   true,
			SetName:        r.one.Name,
			SetID:          r.one.ID,
		},
	}
}

func (r rules) lookupHairpin() []expr.Any {
	return []expr.Any{
		&expr.Payload{
			DestRegister: reg1,
			Base:         expr.PayloadBaseNetworkHeader,
			Offset:       r.src,
			Len:          r.len,
		},
		&expr.Payload{
			DestRegister: r.after,
			Base:         expr.PayloadBaseNetworkHeader,
			Offset:       r.dst,
			Len:          r.len,
		},
		&expr.Lookup{SourceRegister: reg1, SetName: r.hairpin.Name, SetID: r.hairpin.ID},
	}
}

func (r rules) notInCluster() []expr.Any {
	return []expr.Any{
		&expr.Payload{
			DestRegister: reg1,
			Base:         expr.PayloadBaseNetworkHeader,
			Offset:       r.dst,
			Len:          r.len,
		},
		&expr.Lookup{
			SourceRegister: reg1,
			SetName:        r.cluster.Name,
			SetID:          r.cluster.ID,
			Invert:         true,
		},
	}
}

func lookupOwn(s *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{
			DestRegister: reg1,
			Base:         expr.PayloadBaseTransportHeader,
			Offset:       2,
			Len:          2,
		},
		&expr.Lookup{SourceRegister: reg1, SetName: s.Name, SetID: s.ID},
	}
}

func (r rules) dnat() []expr.Any {
	return []expr.Any{&expr.NAT{
		Type:        expr.NATTypeDestNAT,
		Family:      r.number,
		RegAddrMin:  reg1,
		RegProtoMin: r.after,
	}}
}

func (r rules) snat(to netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg1, Data: to.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: r.number, RegAddrMin: reg1},
	}
}

// isRedirect matches ICMP redirects.
func (r rules) isRedirect() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{r.icmp}},
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{r.redirect}},
	}
}

// clampMSS sets the TCP MSS to the MTU of the route, for pods whose MTU is larger than that of a tunnel.
func clampMSS() []expr.Any {
	const syn, maxSegment = 2, 2
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0}},
		&expr.Rt{Register: reg1, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: reg1, DestRegister: reg1, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: reg1, Type: maxSegment, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	}
}

// reversePathFails matches packets whose source is not reachable by the incoming link.
func reversePathFails() []expr.Any {
	return []expr.Any{
		&expr.Fib{
			Register:  reg1,
			FlagSADDR: true,
			FlagIIF:   true,
			ResultOIF: true,
		},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: make([]byte, 4)},
	}
}

func toLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

func groupIs(key expr.MetaKey, group uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: binaryutil.NativeEndian.PutUint32(group)},
	}
}

func (r rules) inPrefix(offset uint32, prefix netip.Prefix, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Payload{
			DestRegister: reg1,
			Base:         expr.PayloadBaseNetworkHeader,
			Offset:       offset,
			Len:          r.len,
		},
		&expr.Bitwise{
			SourceRegister: reg1,
			DestRegister:   reg1,
			Len:            r.len,
			Mask:           net.CIDRMask(prefix.Bits(), int(r.len)*8),
			Xor:            make([]byte, r.len),
		},
		&expr.Cmp{Op: op, Register: reg1, Data: prefix.Masked().Addr().AsSlice()},
	}
}
