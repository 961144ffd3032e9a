// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"context"
	"errors"
	"net"
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

// TestRoomIsMade: who has sent nothing goes first, then who is not known; who is known stays, and does not take
// everything.
func TestRoomIsMade(t *testing.T) {
	listener := New(&source{}, 10)
	var all []*offered
	conns := map[*offered]net.Conn{}
	add := func(to State) *offered {
		o := &offered{from: "127.0.0.1:1000"}
		c := accept(t, listener, o)
		if c == nil {
			return nil
		}
		all = append(all, o)
		conns[o] = c
		Reach(Context(t.Context(), c), to)
		return o
	}
	for range 5 {
		add(Authenticated)
	}
	anonymous := []*offered{add(Anonymous), add(Anonymous)}
	pending := []*offered{add(Pending), add(Pending), add(Pending)}
	if s := listener.Stats(); s.Open != [states]int{3, 2, 5} || s.Max != 10 {
		t.Fatalf("got %+v", s)
	}
	for i, want := range append(pending, anonymous...) {
		next := add(Authenticated)
		if i < 4 && !want.closed {
			t.Fatalf("connection %d should have made room", i)
		}
		if next == nil {
			t.Fatalf("no room for number %d", i)
		}
	}
	s := listener.Stats()
	if s.Open != [states]int{1, 0, 9} {
		t.Errorf("authenticated connections leave a place for others: got %+v", s)
	}
	if last := add(Anonymous); last == nil {
		t.Error("a health check found no place")
	}
	for i, o := range all[:5] {
		if o.closed {
			t.Errorf("authenticated connection %d was closed", i)
		}
	}
	for o, c := range conns {
		if !o.closed {
			_ = c.Close()
			_ = c.Close() // twice does no harm
		}
	}
	if s := listener.Stats(); s.Open[Authenticated] != 0 {
		t.Errorf("closed connections still count: %+v", s)
	}
}

// TestOneAddress has a quarter of the places, unless it authenticates or is this machine.
func TestOneAddress(t *testing.T) {
	listener := New(&source{}, 8)
	for i, want := range []bool{true, true, false} {
		if c := accept(t, listener, &offered{from: "192.0.2.1:77"}); (c != nil) != want {
			t.Errorf("connection %d of one address: got %v, want accepted: %v", i, c, want)
		}
	}
	c := accept(t, listener, &offered{from: "192.0.2.2:77"})
	if c == nil {
		t.Fatal("another address is refused")
	}
	Reach(Context(context.Background(), c), Authenticated)
	for range 2 {
		if accept(t, listener, &offered{from: "192.0.2.2:77"}) == nil {
			t.Error("authenticated connections must not count against their address")
		}
	}
	for range 3 {
		if accept(t, listener, &offered{from: "127.0.0.1:77"}) == nil {
			t.Error("loopback is refused")
		}
	}
	if s := listener.Stats(); s.Refused[ByAddress] != 1 {
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
