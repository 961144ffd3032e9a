// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// firstRegister is the number of the first of 16 registers of four bytes (NFT_REG32_00). Offsets here count from it.
const firstRegister = 8

// Operand is a value that a rule loads or computes: Field or Random. The result of a map lookup is not an Operand,
// because the nft program aborts when it prints a concatenation with one.
type Operand interface {
	fmt.Stringer
	// types returns the types of its parts.
	types() []Type
	// load loads it into registers from the offset on.
	load(at int) []expr.Any
	// family returns 4 or 6 if only packets of that family have the value, else 0.
	family() int
}

// Field is a field of the packet or of its metadata.
type Field int

// The fields.
const (
	IPSaddr Field = iota
	IPDaddr
	IP6Saddr
	IP6Daddr
	THSport // of TCP, UDP and SCTP
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
		return &expr.Payload{
			DestRegister: reg,
			Base:         base,
			Offset:       offset,
			Len:          length,
		}
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

// Random is a uniformly distributed number from 0 to below it.
type Random uint32

func (r Random) String() string { return fmt.Sprintf("numgen random mod %d", uint32(r)) }
func (r Random) types() []Type  { return []Type{Num} }
func (r Random) family() int    { return 0 }

func (r Random) load(at int) []expr.Any {
	return []expr.Any{&expr.Numgen{Register: reg(at), Modulus: uint32(r), Type: unix.NFT_NG_RANDOM}}
}

// Target is a DNAT destination: the value of a map for a key.
type Target struct {
	name string
	data []Type
	key  concat
}

// Map returns a Target. data are the types of the map's values: an address and a Port. A packet without an element does
// not match the rule.
func Map(name string, data []Type, key ...Operand) Target { return Target{name, data, concat(key)} }

func (m Target) String() string { return m.key.String() + " map @" + m.name }

func (m Target) load(at int) []expr.Any {
	return append(m.key.load(at), &expr.Lookup{
		SourceRegister: reg(at),
		DestRegister:   reg(at),
		IsDestRegSet:   true,
		SetName:        m.name,
	})
}

// concat is a concatenation of operands.
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
