// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// listening reports whether a process of this node listens on the address and port, with an unspecified address on any
// one of the family. It tries to listen itself; any error except "address in use" means no, such as that of an address
// that the node does not have.
func listening(addr netip.Addr, proto uint8, port uint16) bool {
	at := net.JoinHostPort(addr.String(), strconv.Itoa(int(port)))
	family := "4"
	if addr.Is6() {
		family = "6"
	}
	var lc net.ListenConfig
	switch proto {
	case unix.IPPROTO_TCP:
		l, err := lc.Listen(context.Background(), "tcp"+family, at)
		if err == nil {
			_ = l.Close()
		}
		return errors.Is(err, unix.EADDRINUSE)
	case unix.IPPROTO_UDP:
		l, err := lc.ListenPacket(context.Background(), "udp"+family, at)
		if err == nil {
			_ = l.Close()
		}
		return errors.Is(err, unix.EADDRINUSE)
	}
	return false
}
