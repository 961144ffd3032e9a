// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listeners are the sockets of one address.
type Listeners struct {
	UDP *net.UDPConn
	TCP *net.TCPListener
}

// socketBuffer is how many bytes of requests wait to be read, and of answers to be sent.
const socketBuffer = 4 << 20

// Listen opens both sockets at addr, which may be an address that the machine does not have yet. Port 0 picks one that
// is free for both.
func Listen(ctx context.Context, addr netip.AddrPort) (listeners Listeners, err error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// a descriptor
		ctl := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(ctl, err)
	}}
	for range 8 {
		if listeners, err = listen(ctx, &lc, addr); err == nil || addr.Port() != 0 {
			return listeners, err
		}
	}
	return listeners, err
}

func listen(ctx context.Context, lc *net.ListenConfig, addr netip.AddrPort) (Listeners, error) {
	t, err := lc.Listen(ctx, "tcp", addr.String())
	if err != nil {
		return Listeners{}, fmt.Errorf("listen for names: %w", err)
	}
	tcp := t.(*net.TCPListener)            // as asked
	port := tcp.Addr().(*net.TCPAddr).Port // as asked
	u, err := lc.ListenPacket(ctx, "udp", net.JoinHostPort(addr.Addr().String(), strconv.Itoa(port)))
	if err != nil {
		_ = tcp.Close()
		return Listeners{}, fmt.Errorf("listen for names: %w", err)
	}
	udp := u.(*net.UDPConn) // as asked
	grow(udp)
	return Listeners{udp, tcp}, nil
}

// grow asks for a longer queue; the kernel's own limit holds where we may not go beyond it.
func grow(c *net.UDPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil { // a descriptor
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer) // a descriptor
		}
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer) // a descriptor
	})
}

// Addr is where the sockets listen.
func (l Listeners) Addr() netip.AddrPort { return l.TCP.Addr().(*net.TCPAddr).AddrPort() } // it is one

// Close closes both.
func (l Listeners) Close() {
	_ = l.UDP.Close()
	_ = l.TCP.Close()
}

// Run answers what comes to listeners until ctx ends. It closes listeners.
func (h *Handler) Run(ctx context.Context, listeners Listeners) error {
	stop := context.AfterFunc(ctx, listeners.Close)
	defer stop()
	defer listeners.Close()
	var work sync.WaitGroup
	errs := make(chan error, maxReaders+1)
	for range min(runtime.GOMAXPROCS(0), maxReaders) {
		work.Go(func() { errs <- h.datagrams(ctx, listeners) })
	}
	work.Go(func() { errs <- h.connections(ctx, listeners.TCP) })
	err := <-errs
	listeners.Close()
	work.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

const (
	maxReaders = 8
	maxRequest = 4096 // no request is longer
)

func (h *Handler) datagrams(ctx context.Context, listeners Listeners) error {
	buf := make([]byte, maxRequest)
	for {
		n, from, err := listeners.UDP.ReadFromUDPAddrPort(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("read requests: %w", err)
			}
			continue // an answer could not be delivered: its client is gone
		}
		// a lost answer is asked for again
		h.Serve(buf[:n], from.Addr(), false, func(b []byte) { _, _ = listeners.UDP.WriteToUDPAddrPort(b, from) })
	}
}

// Bounds of connections.
const (
	maxConnections = 512
	maxOfClient    = 32
	idleConnection = 10 * time.Second
	slowClient     = 5 * time.Second
)

// tally counts connections, in all and by client.
type tally struct {
	mu  sync.Mutex
	all int
	of  map[netip.Addr]int
}

func (t *tally) enter(a netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all >= maxConnections || t.of[a] >= maxOfClient {
		return false
	}
	t.all++
	t.of[a]++
	return true
}

func (t *tally) leave(a netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if t.of[a]--; t.of[a] == 0 {
		delete(t.of, a)
	}
}

// connections serves clients by TCP (RFC 7766), a question of each connection at a time.
func (h *Handler) connections(ctx context.Context, l *net.TCPListener) error {
	var work sync.WaitGroup
	defer work.Wait()
	t := tally{of: map[netip.Addr]int{}}
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept connections: %w", err)
			}
			time.Sleep(10 * time.Millisecond) // no descriptor is left, or the client has gone
			continue
		}
		from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap() // it is one
		if h.cfg.Allowed != nil && !h.cfg.Allowed(from) || !t.enter(from) {
			_ = conn.Close()
			continue
		}
		work.Go(func() {
			defer t.leave(from)
			h.connection(ctx, conn, from)
		})
	}
}

func (h *Handler) connection(ctx context.Context, conn *net.TCPConn, from netip.Addr) {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	buf := make([]byte, maxRequest)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(idleConnection)) // fails when it is closed, as the next call does
		if _, err := io.ReadFull(conn, buf[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(buf))
		if n > maxRequest {
			return
		}
		_ = conn.SetReadDeadline(time.Now().Add(slowClient))
		if _, err := io.ReadFull(conn, buf[:n]); err != nil {
			return
		}
		answered := make(chan error, 1)
		serves := h.Serve(buf[:n], from, true, func(b []byte) {
			_ = conn.SetWriteDeadline(time.Now().Add(slowClient))
			// a message fits
			_, err := conn.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(b)), uint16(len(b))), b...))
			answered <- err
		})
		if !serves {
			return
		}
		select {
		case err := <-answered:
			if err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
