// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The table, as nft would print it:
//
//	table ip keelson-ID {
//	    map hostports     { type inet_proto . inet_service : ipv4_addr . inet_service }
//	    map hostports-ip  { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	    set own           { type inet_service }
//	    chain hostports   { th dport @own return
//	                        dnat ip to ip daddr . meta l4proto . th dport map @hostports-ip
//	                        dnat ip to meta l4proto . th dport map @hostports }
//	    chain prerouting  { type nat hook prerouting priority dstnat;  fib daddr type local jump hostports }
//	    chain output      { type nat hook output priority -100;        fib daddr type local jump hostports }
//	    chain postrouting { type nat hook postrouting priority srcnat
//	                        oifname BRIDGE ip saddr 127.0.0.0/8 masquerade
//	                        oifname BRIDGE ip saddr PODS ct status dnat masquerade
//	                        ip saddr PODS ip daddr != PODS ip daddr != 224.0.0.0/4 masquerade }
//	    chain guard       { type filter hook prerouting priority raw; iifname BRIDGE ip daddr 127.0.0.0/8 drop }
//	    chain forward     { type filter hook forward priority filter - 10
//	                        iifname BRIDGE accept; oifname BRIDGE accept }
//	}
//
// own are the ports that the node itself listens on: nothing that a pod asked for may take their traffic.
//
// guard keeps pods away from what listens on the node's loopback, which route_localnet on the bridge would open to them.

const (
	reg1   = 1 // the first 16-byte register
	reg1b  = 9 // its second, third 4-byte part
	reg1c  = 10
	ctDNAT = 0x20
)

var (
	anyKey  = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	oneKey  = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	target  = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	loopNet = netip.MustParsePrefix("127.0.0.0/8")
)

// rules are the table's parts that are named again later.
type rules struct {
	table    *nftables.Table
	any, one *nftables.Set
	own      *nftables.Set
}

func (n *Network) rules() rules {
	t := &nftables.Table{Name: n.table, Family: nftables.TableFamilyIPv4}
	return rules{
		table: t,
		any:   &nftables.Set{Table: t, Name: "hostports", ID: 1, IsMap: true, Concatenation: true, KeyType: anyKey, DataType: target},
		one:   &nftables.Set{Table: t, Name: "hostports-ip", ID: 2, IsMap: true, Concatenation: true, KeyType: oneKey, DataType: target},
		own:   &nftables.Set{Table: t, Name: "own", ID: 3, KeyType: nftables.TypeInetService},
	}
}

// setUpRules replaces the whole table in one transaction: traffic sees the old rules or the new ones.
func (n *Network) setUpRules(k *kernel) error {
	k.nftMu.Lock()
	defer k.nftMu.Unlock()
	r := n.rules()
	k.nft.AddTable(r.table) // so that there is one to delete
	k.nft.DelTable(r.table)
	k.nft.AddTable(r.table)
	all, one := n.elements()
	if err := errors.Join(k.nft.AddSet(r.any, all), k.nft.AddSet(r.one, one), k.nft.AddSet(r.own, n.ownElements())); err != nil {
		return fmt.Errorf("set up nftables: %w", err)
	}
	n.addChains(k.nft, r)
	if err := k.nft.Flush(); err != nil {
		return wordNft(k, err)
	}
	return n.openForeignChains(k)
}

// wordNft finds out what the kernel lacks, since the transaction's error does not say.
func wordNft(k *kernel, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("set up nftables: not permitted (needs root): %w", err)
	}
	if missing := k.missingFeature(); missing != "" {
		return fmt.Errorf("this kernel has no %s, which the pod network needs: %w", missing, err)
	}
	return fmt.Errorf("set up nftables: %w", err)
}

func (n *Network) addChains(c *nftables.Conn, r rules) {
	chain := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, prio nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: r.table, Type: typ, Hooknum: hook, Priority: new(prio)})
	}
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		c.AddRule(&nftables.Rule{Table: r.table, Chain: ch, Exprs: all})
	}
	ports := c.AddChain(&nftables.Chain{Name: "hostports", Table: r.table})
	rule(ports, lookupOwn(r.own), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
	rule(ports, lookupOne(r.one), dnat())
	rule(ports, lookupAny(r.any), dnat())
	jump := []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "hostports"}}
	pre := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest)
	rule(pre, toLocal(), jump)
	out := chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest)
	rule(out, toLocal(), jump)
	post := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	pods, masquerade := n.cfg.PodCIDR, []expr.Any{&expr.Masq{}}
	rule(post, oif(n.bridge), from(loopNet), masquerade)
	rule(post, oif(n.bridge), from(pods), translated(), masquerade)
	rule(post, from(pods), notTo(pods), notTo(netip.MustParsePrefix("224.0.0.0/4")), masquerade)
	guard := chain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw)
	rule(guard, iif(n.bridge), to(loopNet), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})
	forward := chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter-10)
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	rule(forward, iif(n.bridge), accept)
	rule(forward, oif(n.bridge), accept)
}

func lookupAny(m *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1},
		&expr.Payload{DestRegister: reg1b, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
	}
}

func lookupOne(m *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1b},
		&expr.Payload{DestRegister: reg1c, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
	}
}

func lookupOwn(s *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: reg1, SetName: s.Name, SetID: s.ID},
	}
}

func dnat() []expr.Any {
	return []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1, RegProtoMin: reg1b}}
}

func toLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

func iif(name string) []expr.Any { return linkNamed(expr.MetaKeyIIFNAME, name) }
func oif(name string) []expr.Any { return linkNamed(expr.MetaKeyOIFNAME, name) }

func linkNamed(key expr.MetaKey, name string) []expr.Any {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: b},
	}
}

func from(p netip.Prefix) []expr.Any  { return inPrefix(12, p, expr.CmpOpEq) }
func to(p netip.Prefix) []expr.Any    { return inPrefix(16, p, expr.CmpOpEq) }
func notTo(p netip.Prefix) []expr.Any { return inPrefix(16, p, expr.CmpOpNeq) }

func inPrefix(offset uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := make([]byte, 4)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg1, Data: p.Masked().Addr().AsSlice()},
	}
}

func translated() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1},
		&expr.Bitwise{
			SourceRegister: reg1, DestRegister: reg1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(ctDNAT), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
}

// elements are the maps' contents for all leases.
func (n *Network) elements() (all, one []nftables.SetElement) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.leases {
		a, o := elementsOf(l)
		all, one = append(all, a...), append(one, o...)
	}
	return all, one
}

// elementsOf are the elements of one pod. In a concatenation each part fills a multiple of four bytes.
func elementsOf(l *lease) (all, one []nftables.SetElement) {
	keys, err := keysOf(l.Ports)
	if err != nil {
		return nil, nil // checked when the lease was made or read
	}
	for i, k := range keys {
		val := append(l.Addrs[0].AsSlice(), portBytes(l.Ports[i].ContainerPort)...)
		key := append([]byte{k.proto, 0, 0, 0}, portBytes(k.port)...)
		if k.ip.IsValid() {
			one = append(one, nftables.SetElement{Key: append(k.ip.AsSlice(), key...), Val: val})
			continue
		}
		all = append(all, nftables.SetElement{Key: key, Val: val})
	}
	return all, one
}

func portBytes(p uint16) []byte { return []byte{byte(p >> 8), byte(p), 0, 0} }

func (n *Network) openPorts(k *kernel, l *lease) error {
	err := n.changePorts(k, l, k.nft.SetAddElements)
	if err != nil {
		return fmt.Errorf("open host ports: %w", err)
	}
	k.forgetFlows(l)
	return nil
}

// closePorts deletes the pod's elements. Some may not be there: Attach may have failed before it added them.
func (n *Network) closePorts(k *kernel, l *lease) error {
	err := n.changePorts(k, l, k.nft.SetDeleteElements)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("close host ports: %w", err)
	}
	k.forgetFlows(l)
	return nil
}

func (n *Network) changePorts(k *kernel, l *lease, change func(*nftables.Set, []nftables.SetElement) error) error {
	if len(l.Ports) == 0 {
		return nil
	}
	k.nftMu.Lock()
	defer k.nftMu.Unlock()
	r := n.rules()
	r.any.ID, r.one.ID = 0, 0 // by name: they are of an earlier transaction
	all, one := elementsOf(l)
	for _, c := range []struct {
		set *nftables.Set
		els []nftables.SetElement
	}{{r.any, all}, {r.one, one}} {
		if len(c.els) == 0 {
			continue
		}
		if err := change(c.set, c.els); err != nil {
			return err
		}
	}
	return k.nft.Flush()
}

// forgetFlows drops the kernel's memory of UDP flows to the pod's host ports: it would send them where the port led before.
func (k *kernel) forgetFlows(l *lease) {
	for _, p := range l.Ports {
		if !strings.EqualFold(p.Protocol, "udp") {
			continue
		}
		f := &netlink.ConntrackFilter{}
		err := errors.Join(f.AddProtocol(unix.IPPROTO_UDP), f.AddPort(netlink.ConntrackOrigDstPort, p.HostPort))
		if err == nil {
			// Without it such a flow ends by itself within minutes.
			_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f)
		}
	}
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
