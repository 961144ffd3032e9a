// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"testing"
)

// offered is a connection from an address.
type offered struct {
	net.Conn
	from   string
	closed bool
}

func (o *offered) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", o.from)
	if err != nil {
		panic(err) // the addresses are the test's own
	}
	return a
}

func (o *offered) Close() error {
	o.closed = true
	return nil
}

// source hands out connections.
type source struct {
	net.Listener
	next []*offered
}

var errDry = errors.New("no more")

func (s *source) Accept() (net.Conn, error) {
	if len(s.next) == 0 {
		return nil, errDry
	}
	o := s.next[0]
	s.next = s.next[1:]
	return o, nil
}

func accept(t *testing.T, l *Listener, o *offered) net.Conn {
	t.Helper()
	s, ok := l.Listener.(*source)
	if !ok {
		t.Fatal("not a source")
	}
	s.next = append(s.next, o)
	c, err := l.Accept()
	if err != nil && !errors.Is(err, errDry) {
		t.Fatal(err)
	}
	return c
}

// opened is a connection that a test opened.
type opened struct {
	*offered
	conn net.Conn
}

// open accepts a connection from an address; nil: the listener refused it.
func open(t *testing.T, l *Listener, from string) *opened {
	t.Helper()
	o := &offered{from: from}
	c := accept(t, l, o)
	if c == nil {
		return nil
	}
	return &opened{o, c}
}

func (o *opened) request(t *testing.T) *opened {
	t.Helper()
	Request(Context(t.Context(), o.conn))
	return o
}

func (o *opened) identify(t *testing.T, who Owner) *opened {
	t.Helper()
	o.request(t)
	Identify(Context(t.Context(), o.conn), who)
	return o
}

const (
	local = "127.0.0.1:1000"
	there = "192.0.2.1:77"
)

var admin = Owner{Name: "admin", Rank: Admin}

// TestRoomIsMade: the largest group of loose connections gives up its oldest; kept connections stay, and leave a tenth.
func TestRoomIsMade(t *testing.T) {
	listener := New(&source{}, 10)
	var kept []*opened
	for range 5 {
		kept = append(kept, open(t, listener, local).identify(t, admin))
	}
	anonymous := []*opened{open(t, listener, local).request(t), open(t, listener, local).request(t)}
	pending := []*opened{open(t, listener, local), open(t, listener, local), open(t, listener, local)}
	if s := listener.Stats(); s.Open != [states]int{Pending: 3, Anonymous: 2, Authenticated: 5} || s.Max != 10 {
		t.Fatalf("got %+v", s)
	}
	for i, want := range []*opened{pending[0], anonymous[0], pending[1], anonymous[1]} {
		kept = append(kept, open(t, listener, local).identify(t, admin))
		if !want.closed {
			t.Errorf("connection %d should have made room", i)
		}
	}
	if s := listener.Stats(); s.Open != [states]int{Pending: 1, Authenticated: 9} {
		t.Errorf("authenticated connections leave a place for others: got %+v", s)
	}
	if open(t, listener, local).request(t) == nil {
		t.Error("a health check found no place")
	}
	for i, o := range kept {
		if o.closed {
			t.Errorf("authenticated connection %d was closed", i)
		}
		_ = o.conn.Close()
		_ = o.conn.Close() // twice does no harm
	}
	if s := listener.Stats(); s.Open[Authenticated] != 0 {
		t.Errorf("closed connections still count: %+v", s)
	}
}

// TestFloodClosesItsOwn: a tenant that takes all places, and strangers that come and go, close neither the
// administrator's handshake, nor its watch, nor the few connections of another tenant.
func TestFloodClosesItsOwn(t *testing.T) {
	for _, tt := range []struct {
		name, tenant, churn, admin string
	}{
		{"all from this machine", local, local, local},
		{"from elsewhere", there, "192.0.2.2:77", "192.0.2.3:77"},
		{"one address and the administrator", local, there, local},
	} {
		t.Run(tt.name, func(t *testing.T) {
			listener := New(&source{}, 100)
			other := open(t, listener, tt.admin).identify(t, Owner{Name: "other"})
			var flood []*opened
			for range 95 {
				if o := open(t, listener, tt.tenant); o != nil {
					flood = append(flood, o.identify(t, Owner{Name: "flood"}))
				}
			}
			churn := func(n int) {
				for i := range n {
					if o := open(t, listener, tt.churn); o != nil && i%2 == 0 {
						o.request(t)
					}
				}
			}
			churn(200)
			shaking := open(t, listener, tt.admin)
			churn(30) // as long as a handshake takes
			if shaking.closed {
				t.Fatal("the administrator's connection was closed during its handshake")
			}
			shaking.identify(t, admin)
			churn(1000)
			if shaking.closed || other.closed {
				t.Errorf("closed: the administrator's watch %v, the other tenant's %v", shaking.closed, other.closed)
			}
			for i, o := range flood[:min(len(flood), 40)] {
				if o.closed {
					t.Errorf("connection %d of the tenant, of its half of the places, was closed for strangers", i)
				}
			}
		})
	}
}

// TestOwnersShare: who has few connections gets a kept one from who has most, and the newest becomes surplus.
func TestOwnersShare(t *testing.T) {
	listener := New(&source{}, 20)
	many := Owner{Name: "many"}
	for range 12 {
		open(t, listener, local).identify(t, many)
	}
	if s := listener.Stats(); s.Open != [states]int{Surplus: 2, Authenticated: 10} {
		t.Fatalf("one tenant has half of the places: got %+v", s)
	}
	for i := range 6 {
		open(t, listener, local).identify(t, Owner{Name: "few"})
		if got, want := listener.kept[Tenant].size("few"), min(i+1, 5); got != want {
			t.Errorf("the second tenant has %d kept connections, want %d", got, want)
		}
	}
	if got := listener.kept[Tenant].size("many"); got != 5 {
		t.Errorf("the first tenant has %d kept connections, want 5: they share", got)
	}
	for range 4 { // makes the listener full: surplus ones go
		open(t, listener, local).identify(t, Owner{Name: "node", Rank: System})
	}
	open(t, listener, local).identify(t, Owner{Name: "node 2", Rank: System})
	for range 9 {
		open(t, listener, local).identify(t, admin)
	}
	if s := listener.Stats(); s.Open[Authenticated] != 18 || listener.kept[Admin].count != 9 {
		t.Errorf("administrators got %d places, of %+v; want 9", listener.kept[Admin].count, s)
	}
	if listener.kept[System].size("node 2") != 1 {
		t.Error("a node with one connection lost it, and others have more")
	}
}

// TestOwnerOfConnection: a connection on which requests of several users come is that of the first, or of the one with
// the highest rank.
func TestOwnerOfConnection(t *testing.T) {
	l := New(&source{}, 20)
	o := open(t, l, local).identify(t, Owner{Name: "a"}).identify(t, Owner{Name: "b"})
	if l.kept[Tenant].size("a") != 1 {
		t.Error("the first owner lost the connection to an equal one")
	}
	o.identify(t, admin).identify(t, Owner{Name: "a"})
	if l.kept[Admin].count != 1 || l.kept[Tenant].count != 0 {
		t.Error("a connection with an administrator's request is the administrator's")
	}
}

// TestRandomLives: whatever happens in whatever order, the counters are what is open, and the largest group is found.
func TestRandomLives(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0)) // no secret
	listener := New(&source{}, 30)
	var all []*opened
	for i := range 20_000 {
		if o := open(t, listener, fmt.Sprintf("192.0.2.%d:1", r.IntN(9))); o != nil {
			all = append(all, o)
		}
		o := all[r.IntN(len(all))]
		who := Owner{Name: strconv.Itoa(r.IntN(4)), Rank: Rank(r.IntN(int(ranks)))} // few
		switch r.IntN(4) {
		case 0:
			o.request(t)
		case 1:
			o.identify(t, who)
		case 2:
			_ = o.conn.Close()
		}
		all = slices.DeleteFunc(all, func(o *opened) bool { return o.closed })
		stats := listener.Stats()
		sum := 0
		most := 0
		for _, n := range stats.Open {
			sum += n
		}
		for _, g := range listener.loose.byKey {
			most = max(most, g.conns.Len())
		}
		largest := 0
		if g := listener.loose.largest(); g != nil {
			largest = g.conns.Len()
		}
		if sum != len(all) || sum != listener.countLocked() || sum > 30 || stats.Open[Authenticated] > 27 ||
			largest != most {
			t.Fatalf("seed %d, step %d: %+v, %d open, largest %d, found %d", seed, i, stats, len(all), most, largest)
		}
	}
	for _, o := range all {
		_ = o.conn.Close()
	}
	if listener.countLocked() != 0 || len(listener.bySource) != 0 || len(listener.loose.byKey) != 0 {
		t.Errorf("seed %d: something is left: %+v", seed, listener.Stats())
	}
}

// TestOneAddress has a quarter of the places, unless it authenticates or is this machine. An IPv6 client has a network
// of addresses.
func TestOneAddress(t *testing.T) {
	listener := New(&source{}, 16)
	var first, second *opened // of an address, and of a network
	for i := range 5 {
		one := open(t, listener, there)
		two := open(t, listener, fmt.Sprintf("[2001:db8::%d]:77", i))
		if one == nil || two == nil {
			t.Fatalf("connection %d of an address or network was refused: it may not be the flood's", i)
		}
		if i == 0 {
			first = one
			second = two
		}
		if i < 3 { // the flood has the larger group
			one.request(t)
			two.request(t)
		}
		if wanted := i == 4; first.closed != wanted || second.closed != wanted {
			t.Errorf("after %d connections of an address the first is closed: %v, %v, want %v", i+1, first.closed,
				second.closed, wanted)
		}
	}
	for range 5 {
		o := open(t, listener, "192.0.2.2:77")
		if o == nil {
			t.Fatal("authenticated connections must not count against their address")
		}
		o.identify(t, Owner{Name: "a"})
	}
	for range 5 {
		if open(t, listener, local) == nil {
			t.Error("loopback is refused")
		}
	}
	if s := listener.Stats(); s.Refused[ByAddress] != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestShares(t *testing.T) {
	for limit, want := range map[uint64]Shares{
		1500:    {600, 150, 150},
		1 << 20: {20000, 2000, 2000},
		1 << 63: {20000, 2000, 2000},
		256:     {102, 25, 25},
	} {
		if got := ForOpenFiles(limit); got != want {
			t.Errorf("limit %d: got %+v, want %+v", limit, got, want)
		}
	}
}
