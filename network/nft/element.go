// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Type is the type of one part of a key or of a map's data.
type Type int

// The types of parts.
const (
	IPv4 Type = iota
	IPv6
	L4Proto // TCP, UDP, SCTP: the protocol's number
	Port
	Num // a number of 32 bits, such as the value of Random
	Interface
)

type typeInfo struct {
	bytes int
	kind  nftables.SetDatatype
}

func (t Type) info() typeInfo {
	switch t {
	case IPv4:
		return typeInfo{4, nftables.TypeIPAddr}
	case IPv6:
		return typeInfo{16, nftables.TypeIP6Addr}
	case L4Proto:
		return typeInfo{1, nftables.TypeInetProto}
	case Port:
		return typeInfo{2, nftables.TypeInetService}
	case Interface:
		return typeInfo{unix.IFNAMSIZ, nftables.TypeIFName}
	case Num:
	}
	return typeInfo{4, nftables.TypeMark}
}

// padded returns the bytes that a part takes in registers.
func (t Type) padded() int { return (t.info().bytes + 3) &^ 3 }

// String returns nft's name of the type.
func (t Type) String() string { return t.info().kind.Name }

// format prints one part.
func (t Type) format(b string) string {
	switch t {
	case IPv4, IPv6:
		a, _ := netip.AddrFromSlice([]byte(b)) // the caller passes the right length
		return a.String()
	case L4Proto:
		switch b[0] {
		case unix.IPPROTO_TCP:
			return "tcp"
		case unix.IPPROTO_UDP:
			return "udp"
		case unix.IPPROTO_SCTP:
			return "sctp"
		}
		return fmt.Sprint(b[0])
	case Port:
		return fmt.Sprint(binary.BigEndian.Uint16([]byte(b)))
	case Interface:
		return fmt.Sprintf("%q", strings.TrimRight(b, "\x00"))
	case Num:
	}
	return fmt.Sprint(binary.NativeEndian.Uint32([]byte(b)))
}

// formatAll prints a concatenation.
func formatAll(ts []Type, b string) string {
	var out []string
	for _, t := range ts {
		if len(b) < t.padded() {
			return fmt.Sprintf("%x", b)
		}
		out = append(out, t.format(b[:t.info().bytes]))
		b = b[t.padded():]
	}
	return strings.Join(out, " . ")
}

// Addr encodes an address as a part of a key or of data.
func Addr(a netip.Addr) string { return string(a.Unmap().AsSlice()) }

// Proto encodes a protocol's number as a part.
func Proto(n uint8) string { return string([]byte{n, 0, 0, 0}) }

// PortNumber encodes a port as a part.
func PortNumber(p uint16) string { return string([]byte{byte(p >> 8), byte(p), 0, 0}) }

// Number encodes a number of 32 bits as a part.
func Number(n uint32) string {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return string(b[:])
}

// InterfaceName encodes a link's name as a part.
func InterfaceName(name string) string {
	var b [unix.IFNAMSIZ]byte
	copy(b[:], name)
	return string(b[:])
}

// Ends are the first and the last value of a part of a key of an Interval set.
type Ends struct{ From, To string }

// Net returns the range of all addresses of p.
func Net(p netip.Prefix) Ends {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	return Ends{Addr(p.Addr()), string(last)}
}

// Only returns the range of a single value: Only(Proto(6)).
func Only(part string) Ends { return Ends{part, part} }

// Range returns the range from one value to another, both included: Range(PortNumber(80), PortNumber(90)).
func Range(from, to string) Ends { return Ends{from, to} }

// RangeKey returns the key of an element of an Interval set.
func RangeKey(parts ...Ends) string {
	var from, to strings.Builder
	for _, p := range parts {
		from.WriteString(p.From)
		to.WriteString(p.To)
	}
	return from.String() + to.String()
}

// Values of verdict maps.
const (
	ToAccept = "accept"
	ToDrop   = "drop"
	ToReturn = "return"
)

// ToChain is the verdict "goto chain" as a map's value: the packet does not return to the rules after the map.
func ToChain(chain string) string { return "goto " + chain }

// ThroughChain is the verdict "jump chain" as a map's value: the packet returns.
func ThroughChain(chain string) string { return "jump " + chain }
