// SPDX-License-Identifier: Apache-2.0

package tunnels_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"keelson/apiserver/tunnels"
	"keelson/lib/connlimit"
	"keelson/lib/mux"
)

// server has tunnels for the node that a request's header names.
type server struct {
	*tunnels.Tunnels
	url     string
	over    chan string // nodes whose tunnels the server has forgotten
	missing atomic.Bool // no node is registered
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{over: make(chan string, 1000)}
	s.Tunnels = tunnels.New(tunnels.Config{
		Caller: func(r *http.Request) (string, error) {
			if n := r.Header.Get("Node"); n != "" {
				return n, nil
			}
			return "", errors.New("no node")
		},
		Exists: func(context.Context, string) (bool, error) { return !s.missing.Load(), nil },
		Log:    slog.New(said(s.over)),
	})
	hs := httptest.NewServer(s.Tunnels)
	s.url = hs.URL
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }() // ends with ctx, waited for below
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		hs.Close()
	})
	return s
}

// join opens a tunnel as a node does; code is the answer's where it is none.
func (s *server) join(t *testing.T, node, upgrade string) (session *mux.Session, code int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+mux.Path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Node", node)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", upgrade)
	tr := &http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, resp.StatusCode
	}
	session, err = mux.Accepter(resp.Body.(io.ReadWriteCloser))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session, resp.StatusCode
}

// greet answers each connection with the text.
func greet(session *mux.Session, text string) {
	go func() { // ends with the session
		for {
			c, err := session.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, text)
			_ = c.Close()
		}
	}()
}

func (s *server) read(t *testing.T, node string) string {
	t.Helper()
	c, err := s.Dial(t.Context(), node)
	if err != nil {
		return err.Error()
	}
	if c == nil {
		return "none"
	}
	defer func() { _ = c.Close() }()
	b, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func ended(t *testing.T, session *mux.Session) {
	t.Helper()
	select {
	case <-session.Ended():
	case <-time.After(time.Minute):
		t.Fatal("the tunnel is still open")
	}
}

// none waits until the server knows that a tunnel is gone: then it has none.
func (s *server) none(t *testing.T, node string) {
	t.Helper()
	for late := time.After(time.Minute); ; {
		select {
		case n := <-s.over:
			if n != node {
				continue
			}
		case <-late:
			t.Fatalf("the tunnel of node %s does not end", node)
		}
		break
	}
	if c, err := s.Dial(t.Context(), node); c != nil || err != nil {
		t.Errorf("node %s: %v, %v; want no tunnel", node, c, err)
	}
}

// said is a log's handler that passes on whose tunnels ended.
type said chan<- string

func (said) Enabled(context.Context, slog.Level) bool { return true }
func (s said) WithAttrs([]slog.Attr) slog.Handler     { return s }
func (s said) WithGroup(string) slog.Handler          { return s }
func (s said) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "tunnel to kubelet closed" {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "node" {
				s <- a.Value.String()
			}
			return true
		})
	}
	return nil
}

// TestEachNodeIsReachedByItsOwn: connections lead to the node that opened the tunnel, and to no other; the last tunnel
// of a node counts, and of too many the oldest ends.
func TestEachNodeIsReachedByItsOwn(t *testing.T) {
	server := newServer(t)
	one, _ := server.join(t, "one", mux.Protocol)
	two, _ := server.join(t, "two", mux.Protocol)
	greet(one, "I am one")
	greet(two, "I am two")
	for node, want := range map[string]string{"one": "I am one", "two": "I am two", "three": "none"} {
		if got := server.read(t, node); got != want {
			t.Errorf("node %s: %q, want %q", node, got, want)
		}
	}
	again, _ := server.join(t, "one", mux.Protocol)
	greet(again, "I am one again")
	if got := server.read(t, "one"); got != "I am one again" {
		t.Errorf("after a second tunnel: %q", got)
	}
	_ = again.Close()
	if node := <-server.over; node != "one" {
		t.Errorf("the tunnel of node %s ended", node)
	}
	if got := server.read(t, "one"); got != "I am one" {
		t.Errorf("after the end of the second: %q, want the first", got)
	}
	for range 4 {
		further, _ := server.join(t, "one", mux.Protocol)
		greet(further, "I am one")
	}
	ended(t, one)
}

// TestWhoOpensATunnel: a node that is registered, in the right words; no one else.
func TestWhoOpensATunnel(t *testing.T) {
	s := newServer(t)
	if _, code := s.join(t, "", mux.Protocol); code != http.StatusForbidden {
		t.Errorf("who is no node: %d, want 403", code)
	}
	if _, code := s.join(t, "one", "websocket"); code != http.StatusUpgradeRequired {
		t.Errorf("another protocol: %d, want 426", code)
	}
	s.missing.Store(true)
	if _, code := s.join(t, "one", mux.Protocol); code != http.StatusConflict {
		t.Errorf("a node that is not registered: %d, want 409", code)
	}
}

// TestTunnelsEnd: with the node, with a node that opens something itself, with the other side.
func TestTunnelsEnd(t *testing.T) {
	server := newServer(t)
	deleted, _ := server.join(t, "deleted", mux.Protocol)
	server.CloseNode("deleted")
	ended(t, deleted)
	server.none(t, "deleted")

	attacker, _ := server.join(t, "attacker", mux.Protocol)
	if c, err := attacker.Open(); err == nil {
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	}
	ended(t, attacker)
	server.none(t, "attacker")

	gone, _ := server.join(t, "gone", mux.Protocol)
	_ = gone.Close()
	server.none(t, "gone")
}

// TestConnectionsAreBounded: a tunnel carries so many and no more, and each that ends makes room for another.
func TestConnectionsAreBounded(t *testing.T) {
	server := newServer(t)
	session, _ := server.join(t, "one", mux.Protocol)
	go func() { // ends with the session
		for {
			c, err := session.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection, as a kubelet's server ends its own
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	for round := range 4 { // 1,024 lives
		var open []net.Conn
		for range mux.Most {
			c, err := server.Dial(t.Context(), "one")
			if err != nil {
				t.Fatalf("round %d, connection %d: %v", round, len(open), err)
			}
			open = append(open, c)
		}
		if c, err := server.Dial(t.Context(), "one"); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprint(mux.Most)) {
			t.Fatalf("one more: %v, %v", c, err)
		}
		for _, c := range open {
			_ = c.Close()
			_ = c.Close() // gives back once
		}
	}
}

// TestANodeThatAnswersNothing: who dials it waits no longer than they want to.
func TestANodeThatAnswersNothing(t *testing.T) {
	server := newServer(t)
	if _, code := server.join(t, "silent", mux.Protocol); code != http.StatusSwitchingProtocols {
		t.Fatalf("join: %d", code)
	}
	for range mux.Most { // as many as may wait for the node's word
		c, err := server.Dial(t.Context(), "silent")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if c, err := server.Dial(ctx, "silent"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one more: %v, %v; want the caller's deadline", c, err)
	}
}

// TestTenantsShareATunnel: a tenant that takes all it can leaves places to other tenants, to administrators and to the
// server; a node without a tunnel has nothing to share; what ended is forgotten.
func TestTenantsShareATunnel(t *testing.T) {
	server := newServer(t)
	greedy := connlimit.Owner{Name: "greedy"}
	for range 2 * mux.Most {
		if _, ok := server.Enter("one", greedy); !ok {
			t.Fatal("a node without a tunnel has no places to share")
		}
	}
	server.join(t, "one", mux.Protocol)
	server.join(t, "two", mux.Protocol)
	var leave []func()
	fill := func(owner connlimit.Owner) int {
		for taken := 0; ; taken++ {
			give, ok := server.Enter("one", owner)
			if !ok {
				return taken
			}
			leave = append(leave, give)
		}
	}
	for _, tt := range []struct {
		owner       connlimit.Owner
		least, most int
	}{
		{greedy, tunnels.Requests / 4, tunnels.Requests / 2},
		{connlimit.Owner{Name: "another"}, tunnels.Requests / 5, tunnels.Requests / 4},
		{connlimit.Owner{Name: "admin", Rank: connlimit.Admin}, tunnels.Requests / 4, tunnels.Requests / 2},
	} {
		if got := fill(tt.owner); got < tt.least || got > tt.most {
			t.Errorf("%s got %d places, want %d to %d", tt.owner.Name, got, tt.least, tt.most)
		}
	}
	if _, ok := server.Enter("two", greedy); !ok {
		t.Error("places of one node count at another one")
	}
	if len(leave) > tunnels.Requests {
		t.Errorf("%d requests, want %d at most, which leaves the server's own a connection", len(leave), tunnels.Requests)
	}
	for _, give := range leave {
		give()
		give() // gives back once
	}
	if got := fill(greedy); got < tunnels.Requests/4 {
		t.Errorf("after the end of all: %d places", got)
	}
}
