// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// firstRegister is the kernel's number of the first of 16 registers of four bytes; all offsets here are in registers from it.
const firstRegister = 8

// Operand is a value that a rule takes from a packet, or makes: Field or Random. What a map holds is none: nft's own program aborts when it
// is to print a concatenation with such a part.
type Operand interface {
	fmt.Stringer
	// types are the parts that it fills.
	types() []Type
	// load puts it into registers at the offset, and may use those after it.
	load(at int) []expr.Any
	// family is 4 or 6 if the value is found in packets of that family alone, else 0.
	family() int
}

// Field is a part of the packet, or what the kernel knows of it.
type Field int

// The fields.
const (
	IPSaddr Field = iota
	IPDaddr
	IP6Saddr
	IP6Daddr
	THSport // of TCP, UDP and SCTP alike
	THDport
	MetaL4Proto
	IIFName
	OIFName
	MetaMark
	CTMark
)

type fieldInfo struct {
	name   string
	typ    Type
	family int
	load   func(reg uint32) expr.Any
}

func payload(base expr.PayloadBase, offset, length uint32) func(uint32) expr.Any {
	return func(reg uint32) expr.Any {
		return &expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: length}
	}
}

func meta(key expr.MetaKey) func(uint32) expr.Any {
	return func(reg uint32) expr.Any { return &expr.Meta{Key: key, Register: reg} }
}

func ct(key expr.CtKey) func(uint32) expr.Any {
	return func(reg uint32) expr.Any { return &expr.Ct{Key: key, Register: reg} }
}

var fields = [...]fieldInfo{
	IPSaddr:     {"ip saddr", IPv4, 4, payload(expr.PayloadBaseNetworkHeader, 12, 4)},
	IPDaddr:     {"ip daddr", IPv4, 4, payload(expr.PayloadBaseNetworkHeader, 16, 4)},
	IP6Saddr:    {"ip6 saddr", IPv6, 6, payload(expr.PayloadBaseNetworkHeader, 8, 16)},
	IP6Daddr:    {"ip6 daddr", IPv6, 6, payload(expr.PayloadBaseNetworkHeader, 24, 16)},
	THSport:     {"th sport", Port, 0, payload(expr.PayloadBaseTransportHeader, 0, 2)},
	THDport:     {"th dport", Port, 0, payload(expr.PayloadBaseTransportHeader, 2, 2)},
	MetaL4Proto: {"meta l4proto", L4Proto, 0, meta(expr.MetaKeyL4PROTO)},
	IIFName:     {"iifname", Interface, 0, meta(expr.MetaKeyIIFNAME)},
	OIFName:     {"oifname", Interface, 0, meta(expr.MetaKeyOIFNAME)},
	MetaMark:    {"meta mark", Num, 0, meta(expr.MetaKeyMARK)},
	CTMark:      {"ct mark", Num, 0, ct(expr.CtKeyMARK)},
}

func (f Field) String() string { return fields[f].name }
func (f Field) types() []Type  { return []Type{fields[f].typ} }
func (f Field) family() int    { return fields[f].family }

func (f Field) load(at int) []expr.Any { return []expr.Any{fields[f].load(reg(at))} }

func reg(at int) uint32 { return uint32(firstRegister + at) }

// Random is an evenly spread number from 0 to below it.
type Random uint32

func (r Random) String() string { return fmt.Sprintf("numgen random mod %d", uint32(r)) }
func (r Random) types() []Type  { return []Type{Num} }
func (r Random) family() int    { return 0 }

func (r Random) load(at int) []expr.Any {
	return []expr.Any{&expr.Numgen{Register: reg(at), Modulus: uint32(r), Type: unix.NFT_NG_RANDOM}}
}

// Target is where a connection is sent: what a map of the table holds for the key.
type Target struct {
	name string
	data []Type
	key  concat
}

// Map is a target whose map has data of the types given: an address and a Port. A packet without an element does not pass the rule.
func Map(name string, data []Type, key ...Operand) Target { return Target{name, data, concat(key)} }

func (m Target) String() string { return m.key.String() + " map @" + m.name }

func (m Target) load(at int) []expr.Any {
	return append(m.key.load(at), &expr.Lookup{SourceRegister: reg(at), DestRegister: reg(at), IsDestRegSet: true, SetName: m.name})
}

// concat is several operands side by side.
type concat []Operand

func (c concat) String() string {
	out := make([]string, len(c))
	for i, o := range c {
		out[i] = o.String()
	}
	return strings.Join(out, " . ")
}

func (c concat) types() []Type {
	var out []Type
	for _, o := range c {
		out = append(out, o.types()...)
	}
	return out
}

func (c concat) family() int {
	for _, o := range c {
		if f := o.family(); f != 0 {
			return f
		}
	}
	return 0
}

func (c concat) load(at int) []expr.Any {
	var out []expr.Any
	for _, o := range c {
		out = append(out, o.load(at)...)
		at += width(o.types()) / 4
	}
	return out
}
