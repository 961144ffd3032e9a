// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Statement is one part of a rule: it matches, or acts.
type Statement struct {
	text   string
	exprs  []expr.Any
	family int // 4 or 6: it applies to packets of that family only
}

// String returns the statement in nft's syntax.
func (s Statement) String() string { return s.text }

// Is matches packets whose field has the value, a part such as PortNumber(80).
func Is(f Field, value string) Statement { return compare(f, "", expr.CmpOpEq, value) }

// IsNot matches packets whose field has another value.
func IsNot(f Field, value string) Statement { return compare(f, "!= ", expr.CmpOpNeq, value) }

func compare(f Field, sign string, op expr.CmpOp, value string) Statement {
	t := fields[f].typ
	data := []byte(value)[:t.info().bytes]
	return Statement{
		text:   f.String() + " " + sign + t.format(string(data)),
		exprs:  append(f.load(0), &expr.Cmp{Op: op, Register: reg(0), Data: data}),
		family: f.family(),
	}
}

// Within matches packets whose address is in the prefix.
func Within(f Field, p netip.Prefix) Statement { return within(f, "", expr.CmpOpEq, p) }

// Outside matches packets whose address is not in the prefix.
func Outside(f Field, p netip.Prefix) Statement { return within(f, "!= ", expr.CmpOpNeq, p) }

func within(field Field, sign string, op expr.CmpOp, prefix netip.Prefix) Statement {
	prefix = prefix.Masked()
	size := fields[field].typ.info().bytes
	mask := make([]byte, size)
	for i := range prefix.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	ex := append(field.load(0),
		&expr.Bitwise{
			SourceRegister: reg(0),
			DestRegister:   reg(0),
			Len:            uint32(size),
			Mask:           mask,
			Xor:            make([]byte, size),
		},
		&expr.Cmp{Op: op, Register: reg(0), Data: prefix.Addr().AsSlice()})
	return Statement{text: field.String() + " " + sign + prefix.String(), exprs: ex, family: field.family()}
}

// In matches packets for which the set has an element.
func In(set string, key ...Operand) Statement { return lookup(set, "", false, key) }

// NotIn matches packets for which the set has no element.
func NotIn(set string, key ...Operand) Statement { return lookup(set, "!= ", true, key) }

func lookup(set, sign string, invert bool, key concat) Statement {
	ex := append(key.load(0), &expr.Lookup{SourceRegister: reg(0), SetName: set, Invert: invert})
	return Statement{text: key.String() + " " + sign + "@" + set, exprs: ex, family: key.family()}
}

// Vmap applies the verdict of a map; a packet without an element continues with the next rule.
func Vmap(set string, key ...Operand) Statement {
	c := concat(key)
	ex := append(c.load(0), &expr.Lookup{
		SourceRegister: reg(0),
		DestRegister:   unix.NFT_REG_VERDICT,
		IsDestRegSet:   true,
		SetName:        set,
	})
	return Statement{text: c.String() + " vmap @" + set, exprs: ex, family: c.family()}
}

// Between matches packets whose field has a value from one part to another, both included.
func Between(field Field, from, to string) Statement {
	t := fields[field].typ
	n := t.info().bytes
	return Statement{
		text: field.String() + " " + t.format(from[:n]) + "-" + t.format(to[:n]),
		exprs: append(field.load(0), &expr.Range{
			Op:       expr.CmpOpEq,
			Register: reg(0),
			FromData: []byte(from[:n]),
			ToData:   []byte(to[:n]),
		}),
		family: field.family(),
	}
}

// Counter counts packets.
func Counter() Statement { return Statement{text: "counter", exprs: []expr.Any{&expr.Counter{}}} }

// OfFamily matches packets of IPv4 (4) or IPv6 (6).
func OfFamily(family int) Statement {
	name := "ipv4"
	if family == 6 {
		name = "ipv6"
	}
	return Statement{text: "meta nfproto " + name, exprs: ofFamily(family)}
}

func ofFamily(family int) []expr.Any {
	n := byte(unix.NFPROTO_IPV4)
	if family == 6 {
		n = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{n}},
	}
}

// States of a connection, to be combined by "|".
const (
	Invalid     uint32 = expr.CtStateBitINVALID
	Established uint32 = expr.CtStateBitESTABLISHED
	Related     uint32 = expr.CtStateBitRELATED
	New         uint32 = expr.CtStateBitNEW
)

// State matches packets whose connection is in one of the states.
func State(states uint32) Statement {
	var names []string
	for _, s := range []struct {
		bit  uint32
		name string
	}{{Invalid, "invalid"}, {Established, "established"}, {Related, "related"}, {New, "new"}} {
		if states&s.bit != 0 {
			names = append(names, s.name)
		}
	}
	return Statement{
		text:  "ct state " + strings.Join(names, ","),
		exprs: bits(&expr.Ct{Key: expr.CtKeySTATE, Register: reg(0)}, states),
	}
}

// Replying matches packets in the reply direction of their connection.
func Replying() Statement {
	return Statement{
		text: "ct direction reply",
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg(0)}, &expr.Cmp{
				Op:       expr.CmpOpEq,
				Register: reg(0),
				Data:     []byte{1},
			},
		},
	}
}

// Translated matches packets of connections with DNAT.
func Translated() Statement {
	const dnat = 0x20 // IPS_DST_NAT
	return Statement{text: "ct status dnat", exprs: bits(&expr.Ct{Key: expr.CtKeySTATUS, Register: reg(0)}, dnat)}
}

// Marked matches packets with any of the bits in their mark.
func Marked(mask uint32) Statement {
	return Statement{
		text:  fmt.Sprintf("meta mark & %#x != 0", mask),
		exprs: bits(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)}, mask),
	}
}

// bits matches packets with any of the bits in the loaded number.
func bits(load expr.Any, mask uint32) []expr.Any {
	return []expr.Any{
		load,
		&expr.Bitwise{
			SourceRegister: reg(0),
			DestRegister:   reg(0),
			Len:            4,
			Mask:           binaryutil.NativeEndian.PutUint32(mask),
			Xor:            make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: make([]byte, 4)},
	}
}

// OfOtherGroup matches packets that came in by a link of another group than the given one, among groups above 0xffff,
// which pod networks use (see network.GroupOf). Administrators use small numbers, and links without a group are in
// group 0.
func OfOtherGroup(group uint32) Statement {
	return Statement{
		text: fmt.Sprintf("iifgroup & 0xffff0000 != 0 iifgroup != %#x", group),
		exprs: append(bits(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg(0)}, 0xffff0000),
			&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg(0)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: binaryutil.NativeEndian.PutUint32(group)}),
	}
}

// OfPods matches packets that came in by a link of a group above 0xffff.
func OfPods() Statement {
	return Statement{
		text:  "iifgroup & 0xffff0000 != 0",
		exprs: bits(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg(0)}, 0xffff0000),
	}
}

// SetMark sets bits of the packet's mark.
func SetMark(mask uint32) Statement {
	return markWith(fmt.Sprintf("meta mark set meta mark | %#x", mask), ^mask, mask)
}

// ClearMark clears bits of the packet's mark.
func ClearMark(mask uint32) Statement {
	return markWith(fmt.Sprintf("meta mark set meta mark & %#x", ^mask), ^mask, 0)
}

func markWith(text string, mask, xor uint32) Statement {
	return Statement{
		text: text,
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)},
			&expr.Bitwise{
				SourceRegister: reg(0),
				DestRegister:   reg(0),
				Len:            4,
				Mask:           binaryutil.NativeEndian.PutUint32(mask),
				Xor:            binaryutil.NativeEndian.PutUint32(xor),
			},
			&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0), SourceRegister: true},
		},
	}
}

// ToLocal matches packets to an address of this machine.
func ToLocal() Statement { return localAddr("fib daddr type local", &expr.Fib{FlagDADDR: true}) }

// FromLocal matches packets from an address of this machine.
func FromLocal() Statement { return localAddr("fib saddr type local", &expr.Fib{FlagSADDR: true}) }

func localAddr(text string, f *expr.Fib) Statement {
	f.Register = reg(0)
	f.ResultADDRTYPE = true
	return Statement{
		text: text,
		exprs: []expr.Any{
			f, &expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		},
	}
}

func verdict(text string, kind expr.VerdictKind, chain string) Statement {
	return Statement{text: text, exprs: []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}}
}

// Accept accepts the packet in this base chain; chains of other tables still see it.
func Accept() Statement { return verdict("accept", expr.VerdictAccept, "") }

// Drop drops the packet.
func Drop() Statement { return verdict("drop", expr.VerdictDrop, "") }

// Return ends the chain: the packet continues after the rule that jumped here.
func Return() Statement { return verdict("return", expr.VerdictReturn, "") }

// Jump continues in another chain. At its end the packet returns to the rule after this one.
func Jump(chain string) Statement { return verdict("jump "+chain, expr.VerdictJump, chain) }

// Goto continues in another chain, which does not return here.
func Goto(chain string) Statement { return verdict("goto "+chain, expr.VerdictGoto, chain) }

// Reset rejects the packet with a TCP reset.
func Reset() Statement {
	return Statement{text: "reject with tcp reset", exprs: []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}
}

// Unreachable rejects the packet with ICMP port unreachable.
func Unreachable() Statement {
	return Statement{
		text: "reject",
		exprs: []expr.Any{
			&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH},
		},
	}
}

// Masquerade changes the source to the address of the outgoing link and a random free port.
func Masquerade() Statement {
	return Statement{text: "masquerade fully-random", exprs: []expr.Any{&expr.Masq{FullyRandom: true}}}
}

// DNAT changes the destination to the value of a map.
func DNAT(to Target) Statement { return dnat(to.data[0], to.String(), to.load(0), to.key.family()) }

// DNATTo changes the destination to this address and port.
func DNATTo(to netip.AddrPort) Statement {
	typ := IPv4
	family := 4
	text := fmt.Sprintf("%s . %d", to.Addr(), to.Port())
	if to.Addr().Is6() {
		typ = IPv6
		family = 6
	}
	ex := []expr.Any{
		&expr.Immediate{Register: reg(0), Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: reg(typ.padded() / 4), Data: []byte(PortNumber(to.Port()))[:2]},
	}
	return dnat(typ, text, ex, family)
}

func dnat(typ Type, text string, load []expr.Any, family int) Statement {
	proto := uint32(unix.NFPROTO_IPV4)
	name := "ip"
	if typ == IPv6 {
		proto = unix.NFPROTO_IPV6
		name = "ip6"
	}
	ex := append(load, &expr.NAT{
		Type:        expr.NATTypeDestNAT,
		Family:      proto,
		RegAddrMin:  reg(0),
		RegProtoMin: reg(typ.padded() / 4),
		Specified:   true,
	})
	return Statement{text: "dnat " + name + " to " + text, exprs: ex, family: family}
}

// Update adds an element to a set with a Timeout, or renews its timeout. If the set is full, the packet does not match.
func Update(set string, timeout time.Duration, key ...Operand) Statement {
	k := concat(key)
	ex := append(k.load(0), &expr.Dynset{
		SrcRegKey: reg(0),
		SetName:   set,
		Operation: unix.NFT_DYNSET_OP_UPDATE,
		Timeout:   timeout,
	})
	return Statement{text: fmt.Sprintf("update @%s { %s timeout %s }", set, k, timeout), exprs: ex, family: k.family()}
}

// build returns the expressions of a rule.
func (r Rule) build() []expr.Any {
	var out []expr.Any
	for _, s := range r {
		if s.family != 0 {
			out = ofFamily(s.family)
			break
		}
	}
	for _, s := range r {
		out = append(out, s.exprs...)
	}
	return out
}

func (r Rule) String() string {
	out := make([]string, len(r))
	for i, s := range r {
		out[i] = s.text
	}
	return strings.Join(out, " ")
}
