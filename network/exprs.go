// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	reg1   = 1 // the first 16-byte register
	ctAddr = 8 // number of the first 4-byte register: reg1 is 8 to 11
)

func verdict(v expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: v}} }

// address loads an address of the packet's header.
func (r rules) address(register, offset uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: r.len}
}

// port loads the packet's destination port.
func port(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

func protocol(register uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

// in matches what reg1 has with a set; not: what the set lacks.
func in(s *nftables.Set, not bool) expr.Any {
	return &expr.Lookup{SourceRegister: reg1, SetName: s.Name, SetID: s.ID, Invert: not}
}

// target looks up reg1 in a map, whose value replaces it.
func target(s *nftables.Set) expr.Any {
	return &expr.Lookup{
		SourceRegister: reg1,
		DestRegister:   reg1,
		IsDestRegSet:   true,
		SetName:        s.Name,
		SetID:          s.ID,
	}
}

func (r rules) lookupAny() []expr.Any {
	return []expr.Any{protocol(reg1), port(ctAddr + 1), target(r.any)}
}

func (r rules) lookupOne() []expr.Any {
	return []expr.Any{r.address(reg1, r.dst), protocol(r.after), port(r.after + 1), target(r.one)}
}

func (r rules) lookupHairpin() []expr.Any {
	return []expr.Any{r.address(reg1, r.src), r.address(r.after, r.dst), in(r.hairpin, false)}
}

func (r rules) notInCluster() []expr.Any {
	return []expr.Any{r.address(reg1, r.dst), in(r.cluster, true)}
}

func (r rules) lookupOwn() []expr.Any { return []expr.Any{port(reg1), in(r.own, false)} }

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
		protocol(reg1),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{r.icmp}},
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{r.redirect}},
	}
}

// clampMSS sets the TCP MSS to the MTU of the route, for pods whose MTU is larger than that of a tunnel.
func clampMSS() []expr.Any {
	const syn, maxSegment = 2, 2
	return []expr.Any{
		protocol(reg1),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0}},
		&expr.Rt{Register: reg1, Key: expr.RtTCPMSS},
		&expr.Byteorder{
			SourceRegister: reg1,
			DestRegister:   reg1,
			Op:             expr.ByteorderHton,
			Len:            2,
			Size:           2,
		},
		&expr.Exthdr{
			SourceRegister: reg1,
			Type:           maxSegment,
			Offset:         2,
			Len:            2,
			Op:             expr.ExthdrOpTcpopt,
		},
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
		r.address(reg1, offset),
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
