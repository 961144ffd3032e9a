// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"keelson/lib/dial"
)

func TestAddressesOfRegistries(t *testing.T) {
	machine := func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.7")}, nil }
	for _, tt := range []struct {
		host, addr string
		home, away bool
	}{
		{"registry.example.com:443", "203.0.113.9", true, true},
		{"registry.example.com:443", "10.0.0.9", true, true},
		{"registry.example.com:443", "192.0.2.7", true, false}, // a registry on this node
		{"registry.example.com:443", "127.0.1.1", true, false}, // this node by its name, as Debian resolves it
		{"registry.example.com:443", "169.254.169.254", false, false},
		{"registry.example.com:443", "0.0.0.0", false, false},
		{"registry.example.com:443", "ff02::1", false, false},
		{"localhost:5000", "127.0.0.1", true, false},
		{"localhost:5000", "::1", true, false},
		{"x.localhost:5000", "203.0.113.9", false, true}, // it may do without TLS
		{"127.0.0.1:5000", "127.0.0.1", true, false},
		{"192.0.2.7:5000", "192.0.2.7", true, false},
	} {
		to := netip.AddrPortFrom(netip.MustParseAddr(tt.addr), 443)
		if err := checkHome(tt.host, to); (err == nil) != tt.home {
			t.Errorf("an image names %s, which is %s: got %v, want it allowed: %v", tt.host, tt.addr, err, tt.home)
		}
		if err := checkAway(to, machine); (err == nil) != tt.away {
			t.Errorf("a registry names %s, which is %s: got %v, want it allowed: %v", tt.host, tt.addr, err, tt.away)
		}
	}
}

// TestHomeConnectionsServeNoStranger: a connection that was made to a host because an image names it is not used for a
// redirect there.
func TestHomeConnectionsServeNoStranger(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	shared := noSettings(t)
	for _, pool := range []*http.Transport{shared.home, shared.away} {
		pool.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
		defer pool.CloseIdleConnections()
	}
	get := func(home string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&door{connections: shared, host: home}).RoundTrip(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		return err
	}
	if err := get(strings.TrimPrefix(srv.URL, "https://")); err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*dial.RefusedError](get("registry.example.com")); !ok || asked.Load() != 1 {
		t.Errorf("a redirect to the same host is not refused: %d requests arrived", asked.Load())
	}
}

// drip is a body that sends some bytes at once and then one chunk at each interval, until it is ended.
type drip struct {
	first, chunk int
	every        time.Duration
	ended        chan struct{}
}

func (d *drip) Read(p []byte) (int, error) {
	if n := min(d.first, len(p)); n > 0 {
		d.first -= n
		return n, nil
	}
	if d.chunk == 0 {
		<-d.ended
		return 0, context.Canceled
	}
	select {
	case <-time.After(d.every):
		return min(d.chunk, len(p)), nil
	case <-d.ended:
		return 0, context.Canceled
	}
}

// TestPace: a transfer ends when it brings less than the minimum in a window of waiting; waiting for the reader does
// not count.
func TestPace(t *testing.T) {
	for _, tt := range []struct {
		name         string
		body         drip
		reader       time.Duration // that the reader needs for each chunk
		ends, within time.Duration // 0: not in an hour
		dead         bool          // the connection counts as broken, and the transfer is resumed
	}{
		{"a byte every 20 s", drip{chunk: 1, every: 20 * time.Second}, 0, time.Minute, time.Minute, false},
		{"nothing", drip{}, 0, time.Minute, time.Minute, true},
		{
			"a burst, then a byte every 20 s",
			drip{first: 10 << 20, chunk: 1, every: 20 * time.Second},
			0,
			time.Minute, time.Minute, false,
		},
		{"full speed, then nothing", drip{first: 10<<20 + 100}, 0, time.Minute, time.Minute, true},
		{"3 KiB a second", drip{chunk: 3 << 10, every: time.Second}, 0, time.Minute, time.Minute, false},
		{"5 KiB a second", drip{chunk: 5 << 10, every: time.Second}, 0, 0, 0, false},
		{"300 KiB every 50 s", drip{chunk: 300 << 10, every: 50 * time.Second}, 0, 0, 0, false},
		{"a slow reader", drip{chunk: 5 << 10, every: time.Second}, 5 * time.Minute, 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := tt.body
				body.ended = make(chan struct{})
				pace := newPace(func() { close(body.ended) })
				begin := time.Now()
				buf := make([]byte, 512<<10)
				var err error
				for err == nil && time.Since(begin) < time.Hour {
					_, err = pace.read(&body, buf)
					time.Sleep(tt.reader)
				}
				took := time.Since(begin)
				if tt.ends == 0 && err != nil || tt.ends > 0 && (took < tt.ends || took > tt.within) {
					t.Errorf("ended after %v: %v", took, err)
				}
				if dead := pace.quiet >= deadTime; dead != tt.dead {
					t.Errorf("the last read waited %v: broken %v, want %v", pace.quiet, dead, tt.dead)
				}
				if pace.late.Load() != (tt.ends > 0) {
					t.Errorf("late: %v", pace.late.Load())
				}
			})
		})
	}
}
