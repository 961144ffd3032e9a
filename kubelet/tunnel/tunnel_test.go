// SPDX-License-Identifier: Apache-2.0

package tunnel_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/kubelet/tunnel"
	"keelson/lib/mux"
)

func start(t *testing.T, url string, dial func(
	context.Context, string, string,
) (net.Conn, error),
) (tn *tunnel.Tunnel, stop func()) {
	t.Helper()
	tn = tunnel.New(&client.Client{Config: &rest.Config{Host: url, Dial: dial}},
		slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tn.Run(ctx, func() {}) }() // ends with ctx, waited for in stop
	return tn, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestServesThroughTheTunnel: what the server opens is accepted; when the connection ends another one is opened.
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
	tn, stop := start(t, hs.URL, nil)
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
			_, stop := start(t, "http://server.example", func(context.Context, string, string) (net.Conn, error) {
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
			})
			time.Sleep(time.Hour)
			if n := calls.Load(); n < tt.min || n > tt.max {
				t.Errorf("%s: called %d times in an hour, want %d to %d", tt.code, n, tt.min, tt.max)
			}
			stop()
			synctest.Wait()
		})
	}
}
