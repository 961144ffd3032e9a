// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"keelson/api/networking/reach"
)

// silence is how long a UDP probe waits for an answer. No answer is no failure.
const silence = time.Second

// connect makes one connection in the calling thread's network namespace and ends it at once.
func connect(
	ctx context.Context, protocol corev1.Protocol, to netip.AddrPort, timeout time.Duration,
) *reach.Connection {
	out := &reach.Connection{Remote: to}
	if protocol == corev1.ProtocolUDP {
		timeout = min(timeout, silence)
	}
	begin := time.Now()
	// One address: the socket is made by this goroutine, on its thread. It is bound before, so that its port is known
	// when it fails.
	d := net.Dialer{
		Timeout: timeout,
		Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { out.Local = bound(int(fd), to.Addr()) })
		},
	}
	conn, err := d.DialContext(ctx, strings.ToLower(string(protocol)), to.String())
	if err == nil {
		out.Local = addrPort(conn.LocalAddr())
		out.Outcome = reach.Connected
		if protocol == corev1.ProtocolUDP {
			out.Outcome, err = datagram(conn, begin.Add(timeout))
		}
	}
	out.Took = time.Since(begin)
	if err != nil {
		out.Outcome = outcome(err)
		out.Error = err.Error()
	}
	if conn != nil {
		_ = conn.Close() // it was only there to be made
	}
	return out
}

// bound gives a socket its port; not valid where it has none.
func bound(fd int, to netip.Addr) netip.AddrPort {
	var anywhere unix.Sockaddr = &unix.SockaddrInet4{}
	if to.Is6() {
		anywhere = &unix.SockaddrInet6{}
	}
	if unix.Bind(fd, anywhere) != nil {
		return netip.AddrPort{}
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
	}
	return netip.AddrPort{}
}

// datagram sends an empty datagram. An ICMP error from the other side is returned as the socket's error.
func datagram(c net.Conn, until time.Time) (reach.Outcome, error) {
	if _, err := c.Write(nil); err != nil {
		return "", err
	}
	if err := c.SetReadDeadline(until); err != nil {
		return "", err
	}
	var buf [1]byte
	_, err := c.Read(buf[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return reach.Sent, nil
	}
	return reach.Answered, err
}

func addrPort(a net.Addr) netip.AddrPort {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

func outcome(err error) reach.Outcome {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return reach.Refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return reach.TimedOut
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES),
		errors.Is(err, unix.EPERM):
		return reach.Unreachable
	}
	return reach.Failed
}
