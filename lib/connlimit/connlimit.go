// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the connections of a server, so that clients cannot exhaust the process's file descriptors,
// and no client can take the places of the others. The API server, the kubelet's server, the etcd API and the servers
// of agents use it.
//
// A connection is either kept or loose. Kept ones had an authenticated request and are within their owner's share; they
// are never closed for another connection. All others are loose. When the listener is full, a new connection takes the
// place of a loose one: the oldest of the largest group, where a group is one source address and one state. So a flood
// closes its own connections.
//
//	pending --request--> anonymous --owner known--> surplus <--share--> authenticated
//	`------------------- loose --------------------------'             `-- kept --'
//
// Owners share the kept places by need: no one is refused while another owner has more. Tenants together have half of
// all places, so that handshakes of the others always find room; with systems and administrators they have nine tenths.
// Administrators are never limited.
//
// Invariants:
//  1. At most Max connections are open at any time.
//  2. Accept never waits for a connection to end, and does no I/O on connections.
//  3. A kept connection becomes loose only for an owner with fewer kept connections, or for an administrator.
package connlimit

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"keelson/lib/cpusem"
)

// State is the progress of a connection.
type State uint8

// The states. A connection starts as Pending.
const (
	Pending       State = iota // no request yet, perhaps a handshake
	Anonymous                  // it had a request, but none that was authenticated
	Surplus                    // it had an authenticated request, and its owner has its share already
	Authenticated              // it had an authenticated request, and is kept
	states
)

// String returns the state's name, for metrics.
func (s State) String() string {
	return [...]string{"pending", "anonymous", "surplus", "authenticated"}[s]
}

// Rank says which limits an owner of connections has.
type Rank uint8

// The ranks.
const (
	Tenant Rank = iota // any user: one of many, perhaps hostile
	System             // a node or a component of the cluster
	Admin              // an administrator, or the cluster itself: has no limit
	ranks
)

// Owner is the client on whose behalf a connection is open. Clients that can act for each other have the same owner.
type Owner struct {
	Name string
	Rank Rank
}

// Reason is the reason why a connection was closed.
type Reason uint8

// The reasons.
const (
	Evicted   Reason = iota // closed for a newer connection
	ByAddress               // closed for a newer connection of its address, which has too many loose ones
	Full                    // the limit is reached, and no connection could be closed
	reasons
)

// String returns the reason's name, for metrics.
func (r Reason) String() string { return [...]string{"evicted", "address", "full"}[r] }

// Listener is a net.Listener with limits. Make it with New.
type Listener struct {
	net.Listener
	max       int // of all connections
	keep      int // of kept ones
	tenants   int // of kept ones of tenants
	perSource int // of loose ones of one address

	refused [reasons]atomic.Int64
	turns   *cpusem.Gate // limits the computation before first requests

	mu       sync.Mutex
	accepted uint64
	loose    groups[looseKey]
	kept     [ranks]groups[string] // by the owner's name
	bySource map[netip.Prefix]int  // loose ones
	byState  [states]int
}

// looseKey is the group of a loose connection.
type looseKey struct {
	source netip.Prefix // invalid: this machine
	state  State
}

// New limits l to maximum connections. One address may have a quarter of them that are loose; loopback is not limited,
// because all local clients and those behind a tunnel have that address.
func New(l net.Listener, maximum int) *Listener {
	maximum = max(maximum, 1)
	return &Listener{
		Listener:  l,
		max:       maximum,
		keep:      max(maximum*9/10, 1),
		tenants:   max(maximum/2, 1),
		perSource: max(maximum/4, 1),
		bySource:  map[netip.Prefix]int{},
		turns:     cpusem.New(runtime.GOMAXPROCS(0)),
	}
}

// conn is one connection. Its listener's mu guards number, state, owner and place.
type conn struct {
	net.Conn
	l         *Listener
	source    netip.Prefix // invalid: this machine
	once      sync.Once
	turn      atomic.Bool   // holds a place in turns
	requested atomic.Bool   // had its first request
	settled   atomic.Uint32 // 1 + owner.Rank of a kept connection, to be read without a lock; 0: loose

	number uint64 // in the order of acceptance
	state  State
	owner  Owner
	place  *list.Element // nil: closed
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

// sourceOf is the address of a client, for IPv6 its network of 64 bits, which one client can have alone; invalid: this
// machine.
func sourceOf(a net.Addr) netip.Prefix {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	if addr.IsLoopback() {
		return netip.Prefix{}
	}
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	source, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return source
}

// admit admits raw, and closes another connection if the limit is reached; nil: raw is refused.
func (l *Listener) admit(raw net.Conn) *conn {
	c := &conn{Conn: raw, l: l, source: sourceOf(raw.RemoteAddr())}
	reason := Evicted
	var victim *conn
	l.mu.Lock()
	switch {
	case c.source.IsValid() && l.bySource[c.source] >= l.perSource:
		// not the newest: that may be a kubelet's, which shares the address with the flood
		reason = ByAddress
		victim = l.largestOfLocked(c.source).oldest()
		l.removeLocked(victim)
	case l.countLocked() >= l.max:
		g := l.loose.largest()
		if g == nil {
			l.mu.Unlock()
			l.refused[Full].Add(1)
			return nil
		}
		victim = g.oldest()
		l.removeLocked(victim)
	}
	l.accepted++
	c.number = l.accepted
	l.placeLocked(c, Pending)
	l.mu.Unlock()
	if victim != nil {
		l.refused[reason].Add(1)
		_ = victim.Conn.Close() // its server gets an error
	}
	return c
}

// largestOfLocked returns the largest group of loose connections of an address that has some.
func (l *Listener) largestOfLocked(source netip.Prefix) *group[looseKey] {
	var out *group[looseKey]
	for _, s := range []State{Pending, Anonymous, Surplus} {
		g := l.loose.byKey[looseKey{source, s}]
		if g != nil && (out == nil || g.conns.Len() > out.conns.Len()) {
			out = g
		}
	}
	return out
}

func (l *Listener) countLocked() int { return l.loose.count + l.keptLocked() }

func (l *Listener) keptLocked() int {
	n := 0
	for i := range l.kept {
		n += l.kept[i].count
	}
	return n
}

// placeLocked puts a connection that has no place where the state s belongs.
func (l *Listener) placeLocked(c *conn, s State) {
	c.state = s
	l.byState[s]++
	if s == Authenticated {
		l.kept[c.owner.Rank].add(c.owner.Name, c)
		c.settled.Store(1 + uint32(c.owner.Rank))
		return
	}
	l.loose.add(looseKey{c.source, s}, c)
	c.settled.Store(0)
	if c.source.IsValid() {
		l.bySource[c.source]++
	}
}

// removeLocked takes a connection out of its place. One that is closed has none.
func (l *Listener) removeLocked(c *conn) {
	if c.place == nil {
		return
	}
	l.byState[c.state]--
	if c.state == Authenticated {
		l.kept[c.owner.Rank].remove(c.owner.Name, c)
		return
	}
	l.loose.remove(looseKey{c.source, c.state}, c)
	if !c.source.IsValid() {
		return
	}
	if l.bySource[c.source]--; l.bySource[c.source] == 0 {
		delete(l.bySource, c.source)
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

// request notes the first request of c.
func (c *conn) request() {
	c.leave()
	if c.requested.Swap(true) {
		return
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.place == nil || c.state != Pending {
		return
	}
	c.l.removeLocked(c)
	c.l.placeLocked(c, Anonymous)
}

// identify notes that a request of c was authenticated. A connection keeps its first owner, unless a later one has a
// higher rank.
func (c *conn) identify(owner Owner) {
	c.leave()
	c.requested.Store(true)
	if c.settled.Load() > uint32(owner.Rank) {
		return
	}
	listener := c.l
	listener.mu.Lock()
	defer listener.mu.Unlock()
	if c.place == nil || c.state == Authenticated && c.owner.Rank >= owner.Rank {
		return
	}
	known := c.state >= Surplus
	listener.removeLocked(c)
	if !known || owner.Rank > c.owner.Rank {
		c.owner = owner
	}
	s := Surplus
	if listener.makeRoomLocked(c.owner) {
		s = Authenticated
	}
	listener.placeLocked(c, s)
}

// makeRoomLocked reports whether one more connection of owner may be kept. If there is no place for it, an owner with
// more gives one up.
func (l *Listener) makeRoomLocked(owner Owner) bool {
	if owner.Rank == Tenant && l.kept[Tenant].count >= l.tenants && !l.takeLocked(owner, l.kept[Tenant].largest()) {
		return false
	}
	if l.keptLocked() < l.keep {
		return true
	}
	from := l.kept[Tenant].largest()
	if s := l.kept[System].largest(); from == nil || s != nil && s.conns.Len() > from.conns.Len() {
		from = s
	}
	return l.takeLocked(owner, from)
}

// takeLocked makes the newest connection of a group surplus if o is an administrator or would have fewer than the
// group.
func (l *Listener) takeLocked(o Owner, from *group[string]) bool {
	if from == nil || o.Rank != Admin && from.conns.Len() <= l.kept[o.Rank].size(o.Name)+1 {
		return false
	}
	c := from.newest()
	l.removeLocked(c)
	l.placeLocked(c, Surplus)
	return true
}

type connKey struct{}

// Context is for http.Server.ConnContext: with it, Request and Identify find the connection of a request.
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

// Request notes on the connection of a request's context that it had a request.
func Request(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.request()
	}
}

// Identify notes on the connection of a request's context that a request of o was authenticated.
func Identify(ctx context.Context, o Owner) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.identify(o)
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
	l.mu.Lock()
	s := Stats{Max: l.max, Open: l.byState}
	l.mu.Unlock()
	for i := range s.Refused {
		s.Refused[i] = l.refused[i].Load()
	}
	return s
}
