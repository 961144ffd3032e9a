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

// Session is one side of the connection that carries the others.
type Session struct {
	yamux *yamux.Session

	mu      sync.Mutex
	ended   bool
	streams map[*stream]struct{} // open here
}

// past is a deadline that sends away who waits.
var past = time.Unix(1, 0)

type start func(io.ReadWriteCloser, *yamux.Config) (*yamux.Session, error)

func begin(conn io.ReadWriteCloser, f start, c *yamux.Config) (_ *Session, err error) {
	s := &Session{streams: map[*stream]struct{}{}}
	beneath := carrier{conn, s}
	if with, ok := conn.(addresses); ok {
		s.yamux, err = f(addressed{beneath, with}, c)
	} else {
		s.yamux, err = f(beneath, c)
	}
	return s, err
}

// Open opens a connection to the other side. It waits while the other side has not acknowledged Most of them.
func (s *Session) Open() (net.Conn, error) { return s.keep(s.yamux.OpenStream()) }

// Accept waits for a connection that the other side opens.
func (s *Session) Accept() (net.Conn, error) { return s.keep(s.yamux.AcceptStream()) }

// Len is how many connections are open.
func (s *Session) Len() int { return s.yamux.NumStreams() }

// Ended is closed when the session has ended, in whatever way.
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

// end wakes who reads or writes. Those who wait on a stream of a session that has been shut down do not wait any more, but look again and
// again, on all processors, until yamux comes to that stream: with hundreds of them that takes minutes. A deadline that has passed sends
// them away.
func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.streams {
		_ = c.Stream.SetDeadline(past) // never an error
	}
}

// carrier is the connection beneath. yamux closes it as soon as it has shut a session down, whatever the reason.
type carrier struct {
	io.ReadWriteCloser
	session *Session
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

// stream is a connection whose deadlines end a read or a write as those of other connections do: with an error that is not for ever. TLS
// gives a connection up after any other error, and HTTP's server sets a deadline to take a connection over.
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

// overLocked tells why the deadlines are no longer those that were asked for, if so.
func (c *stream) overLocked() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.session.ended:
		return yamux.ErrSessionShutdown
	}
	return nil
}

// Close ends reads that wait too, which yamux leaves to the other side.
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

// until sets a deadline, unless that of the end is set.
func (c *stream) until(set func(time.Time) error, t time.Time) error {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if over := c.overLocked(); over != nil {
		return over
	}
	return set(t)
}
