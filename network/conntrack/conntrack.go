// SPDX-License-Identifier: Apache-2.0

// Package conntrack reads from the kernel where packets go: the conntrack entry of a connection, with the destination
// after DNAT, and the route to an address. The kubelet calls it, through cluster, after a failed probe. It changes
// nothing.
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Netlink constants of conntrack (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet = 1

	ctTupleOrig  = 1
	ctTupleReply = 2

	tupleIP    = 1
	tupleProto = 2

	ip4Src, ip4Dst, ip6Src, ip6Dst = 1, 2, 3, 4

	protoNum, protoSrcPort, protoDstPort = 1, 2, 3
)

// attrType masks the flags for nesting and byte order from an attribute's type.
const attrType = 0x3fff

// Endpoint returns the destination of the connection from local to remote after DNAT; false: the kernel has no entry
// for it.
func Endpoint(protocol uint8, local, remote netip.AddrPort) (netip.AddrPort, bool) {
	family := unix.AF_INET
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|ctGet, unix.NLM_F_ACK)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(family), Version: nl.NFNETLINK_V0})
	req.AddData(tuple(protocol, local, remote))
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil || len(msgs) == 0 || len(msgs[0]) < nl.SizeofNfgenmsg {
		return netip.AddrPort{}, false
	}
	return replySource(msgs[0][nl.SizeofNfgenmsg:])
}

func tuple(protocol uint8, local, remote netip.AddrPort) *nl.RtAttr {
	src := ip4Src
	dst := ip4Dst
	if local.Addr().Is6() {
		src = ip6Src
		dst = ip6Dst
	}
	t := nl.NewRtAttr(unix.NLA_F_NESTED|ctTupleOrig, nil)
	ip := t.AddRtAttr(unix.NLA_F_NESTED|tupleIP, nil)
	ip.AddRtAttr(src, local.Addr().AsSlice())
	ip.AddRtAttr(dst, remote.Addr().AsSlice())
	proto := t.AddRtAttr(unix.NLA_F_NESTED|tupleProto, nil)
	proto.AddRtAttr(protoNum, []byte{protocol})
	proto.AddRtAttr(protoSrcPort, binary.BigEndian.AppendUint16(nil, local.Port()))
	proto.AddRtAttr(protoDstPort, binary.BigEndian.AppendUint16(nil, remote.Port()))
	return t
}

// replySource returns the source of the reply direction, from an entry's attributes.
func replySource(b []byte) (netip.AddrPort, bool) {
	reply := find(b, ctTupleReply)
	ip := find(reply, tupleIP)
	proto := find(reply, tupleProto)
	src := find(ip, ip4Src)
	if src == nil {
		src = find(ip, ip6Src)
	}
	addr, ok := netip.AddrFromSlice(src)
	port := find(proto, protoSrcPort)
	if !ok || len(port) != 2 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(port)), true
}

// find returns the value of the first attribute of a type; nil: there is none.
func find(b []byte, t uint16) []byte {
	const header = 4
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint16(b))
		if size < header || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&attrType == t {
			return b[header:size]
		}
		b = b[min((size+header-1)&^(header-1), len(b)):]
	}
	return nil
}

// Route describes the route of this machine to an address; "": there is none.
func Route(to netip.Addr) string {
	routes, err := netlink.RouteGet(to.AsSlice())
	if errors.Is(err, unix.EHOSTUNREACH) {
		return "no way: a route of this node lets nothing through"
	}
	if err != nil || len(routes) == 0 {
		return ""
	}
	r := routes[0]
	link, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return ""
	}
	return words(link.Type(), link.Attrs().Name, r)
}

func words(kind, name string, r netlink.Route) string {
	switch gw, ok := netip.AddrFromSlice(r.Gw); {
	case r.Type == unix.RTN_LOCAL:
		return "this machine itself"
	case kind == "vxlan":
		return "tunnel " + name + " (VXLAN)"
	case kind == "wireguard", kind == "tuntap" && strings.HasPrefix(name, "kx-"):
		return "tunnel " + name + " (WireGuard)"
	case ok:
		return fmt.Sprintf("gateway %s, link %s", gw.Unmap(), name)
	}
	return strings.TrimSpace("link " + name)
}
