// SPDX-License-Identifier: Apache-2.0

package tunnel_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"keelson/kubelet/tunnel"
	"keelson/lib/mux"
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// known are servers without TLS.
type known struct {
	dial dialer

	mu      sync.Mutex
	hosts   []string
	changed chan struct{}
}

func (k *known) Hosts() ([]string, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hosts, k.changed
}

func (k *known) Upgrade(string) *http.Transport {
	return &http.Transport{DialTLSContext: k.dial}
}

func (k *known) set(hosts ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hosts = hosts
	if k.changed != nil {
		close(k.changed)
	}
	k.changed = make(chan struct{})
}

func start(t *testing.T, dial dialer, hosts ...string) (tn *tunnel.Tunnel, servers *known, stop func()) {
	t.Helper()
	servers = &known{dial: dial}
	servers.set(hosts...)
	tn = tunnel.New(servers, slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tn.Run(ctx, func() {}) }() // ends with ctx, waited for in stop
	return tn, servers, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestServesThroughTheTunnel: the server's connections are accepted; when the tunnel's connection ends, another is
// opened.
func TestServesThroughTheTunnel(t *testing.T) {
	sessions := make(chan *mux.Session)
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != mux.Path || r.Header.Get("Upgrade") != mux.Protocol {
			t.Errorf("%s with Upgrade: %s", r.URL.Path, r.Header.Get("Upgrade"))
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+mux.Protocol+
			"\r\n\r\n")
		s, err := mux.Opener(conn)
		if err != nil {
			t.Error(err)
		}
		sessions <- s
	}))
	defer hs.Close()
	tn, _, stop := start(t, (&net.Dialer{}).DialContext, strings.TrimPrefix(hs.URL, "http://"))
	defer stop()
	go func() { // ends when the tunnel is closed
		_ = (&http.Server{
			ReadHeaderTimeout: time.Second,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "kubelet")
			}),
		}).Serve(tn)
	}()
	defer func() { _ = tn.Close() }()
	for range 2 {
		session := <-sessions
		through := &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return session.Open()
			},
			DisableKeepAlives: true,
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://n1/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := through.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(b) != "kubelet" || err != nil {
			t.Errorf("through the tunnel: %q, %v", b, err)
		}
		_ = session.Close()
	}
}

// TestCallsAgain: a server that refuses is called less and less often, one that knows no tunnels once.
func TestCallsAgain(t *testing.T) {
	for _, tt := range []struct {
		code     string
		min, max int32 // calls in an hour
	}{
		{"409 Conflict", 55, 130},
		{"503 Service Unavailable", 55, 130},
		{"404 Not Found", 1, 1},
		{"403 Forbidden", 1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int32
			_, _, stop := start(t, func(context.Context, string, string) (net.Conn, error) {
				calls.Add(1)
				near, far := net.Pipe()
				go func() { // ends with the connection
					buf := make([]byte, 4096)
					if _, err := far.Read(buf); err == nil {
						_, _ = io.WriteString(far,
							"HTTP/1.1 "+tt.code+"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
					}
					_ = far.Close()
				}()
				return near, nil
			}, "server.example:6443")
			time.Sleep(time.Hour)
			if n := calls.Load(); n < tt.min || n > tt.max {
				t.Errorf("%s: called %d times in an hour, want %d to %d", tt.code, n, tt.min, tt.max)
			}
			stop()
			synctest.Wait()
		})
	}
}

// TestOneTunnelForEachServer: a server that is new gets one at once, also after a long time without an answer; one that
// is gone has none any more.
func TestOneTunnelForEachServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		down := true
		var calls []string
		open := map[string]net.Conn{}
		_, servers, stop := start(t, func(_ context.Context, _, host string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, host)
			if host == "b:1" && down {
				return nil, net.ErrClosed
			}
			near, far := net.Pipe()
			open[host] = far
			go func() { // ends with the connection
				buf := make([]byte, 4096)
				if _, err := far.Read(buf); err == nil {
					_, _ = io.WriteString(far, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+
						mux.Protocol+"\r\n\r\n")
				}
				_, _ = io.Copy(far, far) // answers pings with something, until the end
			}()
			return near, nil
		}, "a:1", "b:1")
		time.Sleep(5 * time.Second)
		mu.Lock()
		if !slices.Contains(calls, "a:1") || !slices.Contains(calls, "b:1") {
			t.Errorf("called: %v; want both", calls)
		}
		mu.Unlock()
		time.Sleep(time.Hour)
		mu.Lock()
		down = false
		calls = nil
		mu.Unlock()
		servers.set("b:1", "c:1") // it is back: the list changes
		synctest.Wait()
		mu.Lock()
		slices.Sort(calls)
		if !slices.Equal(calls, []string{"b:1", "c:1"}) {
			t.Errorf("called: %v; want the one that is back and the new one, at once", calls)
		}
		if _, err := open["a:1"].Write([]byte("x")); err == nil {
			t.Error("the tunnel to a server that is gone is open")
		}
		mu.Unlock()
		stop()
		for _, c := range open {
			_ = c.Close()
		}
		synctest.Wait()
	})
}
