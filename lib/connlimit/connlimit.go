// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the connections of a server before anything is done for them, so that clients cannot take the descriptors that
// the rest of the process needs. A listener that is full makes room for a new connection: it closes the oldest one that has not sent a
// request yet, else the oldest without an authenticated one. Connections with authenticated requests are never closed; together they may
// take nine tenths, so that health checks always find a place. The API server and the kubelet's server use it.
//
// Invariants:
//  1. At most Max connections are open at any time.
//  2. Accept never waits for a connection to end, and does no I/O on connections.
package connlimit

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"keelson/lib/turns"
)

// State is how far a connection has come.
type State uint8

// The states. A connection begins as Pending and never goes back.
const (
	Pending       State = iota // nothing, or a handshake at most
	Anonymous                  // a request, but none that was authenticated
	Authenticated              // an authenticated request
	states
)

// String is the state's name, for metrics.
func (s State) String() string { return [...]string{"pending", "anonymous", "authenticated"}[s] }

// Reason is why a connection was closed.
type Reason uint8

// The reasons.
const (
	Evicted   Reason = iota // to make room for a newer one
	ByAddress               // its address has too many that are not authenticated
	Full                    // no place could be found
	reasons
)

// String is the reason's name, for metrics.
func (r Reason) String() string { return [...]string{"evicted", "address", "full"}[r] }

// Listener is a net.Listener with bounds. New makes one.
type Listener struct {
	net.Listener
	max, authenticated, perAddress int

	refused [reasons]atomic.Int64
	turns   *turns.Gate // what a connection computes before its first request

	mu     sync.Mutex
	open   [states]list.List // of *conn, the oldest first
	byAddr map[netip.Addr]int
}

// New bounds l to max connections. One address that is not loopback (where everybody on this machine and behind a tunnel comes from) may
// have a quarter of them without an authenticated request.
func New(l net.Listener, maximum int) *Listener {
	maximum = max(maximum, 1)
	return &Listener{Listener: l, max: maximum, authenticated: max(maximum*9/10, 1), perAddress: max(maximum/4, 1), byAddr: map[netip.Addr]int{},
		turns: turns.New(runtime.GOMAXPROCS(0))}
}

// conn is one connection. Its listener's mu guards state and place.
type conn struct {
	net.Conn
	l       *Listener
	addr    netip.Addr // invalid: not counted
	once    sync.Once
	turn    atomic.Bool   // has a turn at the processors
	reached atomic.Uint32 // state, to be read without a lock

	state State
	place *list.Element // nil: closed
}

// Accept waits for the next connection that has a place.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.admit(raw); c != nil {
			return c, nil
		}
		_ = raw.Close() // refused: nobody waits for an answer
	}
}

// admit gives raw a place, taken from another one where there is none; nil: it is refused.
func (l *Listener) admit(raw net.Conn) *conn {
	c := &conn{Conn: raw, l: l}
	if a, err := netip.ParseAddrPort(raw.RemoteAddr().String()); err == nil && !a.Addr().Unmap().IsLoopback() {
		c.addr = a.Addr().Unmap()
	}
	l.mu.Lock()
	if c.addr.IsValid() && l.byAddr[c.addr] >= l.perAddress {
		l.mu.Unlock()
		l.refused[ByAddress].Add(1)
		return nil
	}
	var victim *conn
	if l.countLocked() >= l.max {
		if victim = l.victimLocked(); victim == nil {
			l.mu.Unlock()
			l.refused[Full].Add(1)
			return nil
		}
		l.removeLocked(victim)
	}
	c.place = l.open[Pending].PushBack(c)
	l.addrLocked(c, 1)
	l.mu.Unlock()
	if victim != nil {
		l.refused[Evicted].Add(1)
		_ = victim.Conn.Close() // whoever serves it finds out
	}
	return c
}

func (l *Listener) countLocked() int {
	n := 0
	for i := range l.open {
		n += l.open[i].Len()
	}
	return n
}

func (l *Listener) victimLocked() *conn {
	for _, s := range []State{Pending, Anonymous} {
		if e := l.open[s].Front(); e != nil {
			return e.Value.(*conn) //nolint:forcetypeassert // nothing else is in the lists
		}
	}
	return nil
}

func (l *Listener) removeLocked(c *conn) {
	if c.place == nil {
		return
	}
	l.open[c.state].Remove(c.place)
	c.place = nil
	if c.state != Authenticated {
		l.addrLocked(c, -1)
	}
}

func (l *Listener) addrLocked(c *conn, n int) {
	if !c.addr.IsValid() {
		return
	}
	if l.byAddr[c.addr] += n; l.byAddr[c.addr] == 0 {
		delete(l.byAddr, c.addr)
	}
}

// Close gives the place back.
func (c *conn) Close() error {
	c.leave()
	c.once.Do(func() {
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		c.l.removeLocked(c)
	})
	return c.Conn.Close()
}

// CloseWrite half-closes a connection that can be, as crypto/tls and proxies ask for it.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// reach notes that c has come as far as s.
func (c *conn) reach(s State) {
	c.leave()
	if State(c.reached.Load()) >= s { //nolint:gosec // a State
		return
	}
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place == nil || c.state >= s || s == Authenticated && l.open[Authenticated].Len() >= l.authenticated {
		return
	}
	l.removeLocked(c)
	c.state = s
	c.place = l.open[s].PushBack(c)
	if s != Authenticated {
		l.addrLocked(c, 1)
	}
	c.reached.Store(uint32(s))
}

type connKey struct{}

// Context is for http.Server.ConnContext: it lets Reach find the connection of a request.
func Context(ctx context.Context, nc net.Conn) context.Context {
	for {
		switch c := nc.(type) {
		case *conn:
			return context.WithValue(ctx, connKey{}, c)
		case interface{ NetConn() net.Conn }: // TLS
			nc = c.NetConn()
		default:
			return ctx
		}
	}
}

// Reach tells that the connection of the request that ctx belongs to has come as far as s.
func Reach(ctx context.Context, s State) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.reach(s)
	}
}

// Stats are a listener's numbers.
type Stats struct {
	Max     int
	Open    [states]int
	Refused [reasons]int64
}

// Stats returns the numbers of now.
func (l *Listener) Stats() Stats {
	s := Stats{Max: l.max}
	l.mu.Lock()
	for i := range l.open {
		s.Open[i] = l.open[i].Len()
	}
	l.mu.Unlock()
	for i := range s.Refused {
		s.Refused[i] = l.refused[i].Load()
	}
	return s
}
