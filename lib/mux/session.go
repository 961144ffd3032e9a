// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// Session is one side of a tunnel.
type Session struct {
	yamux *yamux.Session

	mu      sync.Mutex
	ended   bool
	streams map[*stream]struct{} // the open ones
}

// past is a deadline that wakes up waiting readers and writers.
var past = time.Unix(1, 0)

type start func(io.ReadWriteCloser, *yamux.Config) (*yamux.Session, error)

func begin(conn io.ReadWriteCloser, f start, c *yamux.Config) (_ *Session, err error) {
	s := &Session{streams: map[*stream]struct{}{}}
	beneath := carrier{conn, s, &pings{}}
	if with, ok := conn.(addresses); ok {
		s.yamux, err = f(addressed{beneath, with}, c)
	} else {
		s.yamux, err = f(beneath, c)
	}
	return s, err
}

// Open opens a connection to the other side. It waits while Most connections are not acknowledged.
func (s *Session) Open() (net.Conn, error) { return s.keep(s.yamux.OpenStream()) }

// Accept waits for a connection that the other side opens.
func (s *Session) Accept() (net.Conn, error) { return s.keep(s.yamux.AcceptStream()) }

// Len returns the number of open connections.
func (s *Session) Len() int { return s.yamux.NumStreams() }

// Ended returns a channel that is closed when the session has ended for any reason.
func (s *Session) Ended() <-chan struct{} { return s.yamux.CloseChan() }

// Close ends the session and all its connections.
func (s *Session) Close() error { return s.yamux.Close() }

func (s *Session) keep(ys *yamux.Stream, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	c := &stream{Stream: ys, session: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, errors.Join(yamux.ErrSessionShutdown, ys.Close())
	}
	s.streams[c] = struct{}{}
	return c, nil
}

// end wakes up readers and writers of the streams. After a shutdown of the session they would otherwise spin, on all
// CPUs, until yamux closes their stream, which takes minutes with hundreds of streams. A deadline in the past ends them
// at once.
func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.streams {
		_ = c.Stream.SetDeadline(past) // never an error
	}
}

// carrier is the underlying connection. yamux closes it whenever it shuts down a session.
type carrier struct {
	io.ReadWriteCloser
	session *Session
	pings   *pings
}

func (c carrier) Read(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(p)
	if flood := c.pings.pass(p[:n]); flood != nil {
		return 0, flood
	}
	return n, err
}

func (c carrier) Close() error {
	c.session.end()
	return c.ReadWriteCloser.Close()
}

type addresses interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

type addressed struct {
	carrier
	addresses
}

// stream is a connection whose deadlines cause a temporary error, as those of other connections do. With another error
// TLS fails permanently, and http.Server, which sets a deadline to hijack a connection, would break it.
type stream struct {
	*yamux.Stream
	session *Session
	closed  bool // session.mu guards it
}

func (c *stream) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	return n, c.known(err)
}

func (c *stream) Write(p []byte) (int, error) {
	n, err := c.Stream.Write(p)
	return n, c.known(err)
}

func (c *stream) known(err error) error {
	if !errors.Is(err, yamux.ErrTimeout) {
		return err
	}
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if over := c.overLocked(); over != nil {
		return over
	}
	return os.ErrDeadlineExceeded
}

// overLocked returns the error of a closed stream or ended session; nil: neither.
func (c *stream) overLocked() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.session.ended:
		return yamux.ErrSessionShutdown
	}
	return nil
}

// Close also wakes up waiting reads; yamux would wait for the other side.
func (c *stream) Close() error {
	c.session.mu.Lock()
	c.closed = true
	delete(c.session.streams, c)
	_ = c.Stream.SetReadDeadline(past) // never an error
	c.session.mu.Unlock()
	return c.Stream.Close()
}

func (c *stream) SetDeadline(t time.Time) error { return c.until(c.Stream.SetDeadline, t) }

func (c *stream) SetReadDeadline(t time.Time) error { return c.until(c.Stream.SetReadDeadline, t) }

func (c *stream) SetWriteDeadline(t time.Time) error { return c.until(c.Stream.SetWriteDeadline, t) }

// until sets a deadline, unless end or Close has set one.
func (c *stream) until(set func(time.Time) error, t time.Time) error {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if over := c.overLocked(); over != nil {
		return over
	}
	return set(t)
}
