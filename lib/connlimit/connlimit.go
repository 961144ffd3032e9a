// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the connections of a server, so that clients cannot exhaust the process's file descriptors.
// When a listener is full, it closes the oldest connection without a request for a new one, or else the oldest without
// an authenticated request. Connections with authenticated requests are never closed; they may use nine tenths of the
// limit, so that health checks always get a connection. The API server and the kubelet's server use it.
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

// State is the progress of a connection.
type State uint8

// The states. A connection starts as Pending; its state never decreases.
const (
	Pending       State = iota // no request yet, perhaps a handshake
	Anonymous                  // it had a request, but none that was authenticated
	Authenticated              // it had an authenticated request
	states
)

// String returns the state's name, for metrics.
func (s State) String() string { return [...]string{"pending", "anonymous", "authenticated"}[s] }

// Reason is the reason why a connection was closed.
type Reason uint8

// The reasons.
const (
	Evicted   Reason = iota // closed for a newer connection
	ByAddress               // the address has too many unauthenticated connections
	Full                    // the limit is reached, and no connection could be closed
	reasons
)

// String returns the reason's name, for metrics.
func (r Reason) String() string { return [...]string{"evicted", "address", "full"}[r] }

// Listener is a net.Listener with limits. Make it with New.
type Listener struct {
	net.Listener
	max, authenticated, perAddress int

	refused [reasons]atomic.Int64
	turns   *turns.Gate // limits the computation before first requests

	mu     sync.Mutex
	open   [states]list.List // of *conn, the oldest first
	byAddr map[netip.Addr]int
}

// New limits l to maximum connections. One address may have a quarter of them without an authenticated request;
// loopback is not limited, because all local clients and those behind a tunnel have that address.
func New(l net.Listener, maximum int) *Listener {
	maximum = max(maximum, 1)
	return &Listener{
		Listener:      l,
		max:           maximum,
		authenticated: max(maximum*9/10, 1),
		perAddress:    max(maximum/4, 1),
		byAddr:        map[netip.Addr]int{},
		turns:         turns.New(runtime.GOMAXPROCS(0)),
	}
}

// conn is one connection. Its listener's mu guards state and place.
type conn struct {
	net.Conn
	l       *Listener
	addr    netip.Addr // invalid: not counted
	once    sync.Once
	turn    atomic.Bool   // holds a place in turns
	reached atomic.Uint32 // state, to be read without a lock

	state State
	place *list.Element // nil: closed
}

// Accept waits for the next connection that is admitted.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.admit(raw); c != nil {
			return c, nil
		}
		_ = raw.Close() // the client gets a reset
	}
}

// admit admits raw, and closes another connection if the limit is reached; nil: raw is refused.
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
		_ = victim.Conn.Close() // its server gets an error
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
			return e.Value.(*conn) // the lists have this type only
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

// Close closes the connection and frees its place.
func (c *conn) Close() error {
	c.leave()
	c.once.Do(func() {
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		c.l.removeLocked(c)
	})
	return c.Conn.Close()
}

// CloseWrite half-closes the connection if it supports that; crypto/tls and proxies call it.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// reach raises the state of c to state.
func (c *conn) reach(state State) {
	c.leave()
	if State(c.reached.Load()) >= state { // a State
		return
	}
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place == nil || c.state >= state || state == Authenticated && l.open[Authenticated].Len() >= l.authenticated {
		return
	}
	l.removeLocked(c)
	c.state = state
	c.place = l.open[state].PushBack(c)
	if state != Authenticated {
		l.addrLocked(c, 1)
	}
	c.reached.Store(uint32(state))
}

type connKey struct{}

// Context is for http.Server.ConnContext: with it, Reach finds the connection of a request.
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

// Reach raises the state of the connection of a request's context to s.
func Reach(ctx context.Context, s State) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.reach(s)
	}
}

// Stats holds the counters of a listener.
type Stats struct {
	Max     int
	Open    [states]int
	Refused [reasons]int64
}

// Stats returns the current counters.
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
