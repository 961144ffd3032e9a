// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"keelson/apiserver/outbound"
	"keelson/pki"
)

var machine = func() ([]netip.Addr, error) {
	return []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7"),
	}, nil
}

// TestAddresses: which address may be dialled for what.
func TestAddresses(t *testing.T) {
	egress := outbound.New(outbound.Config{
		MachineAddresses: machine,
		Listeners: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8443"), netip.MustParseAddrPort(
			"[::]:2379"), netip.MustParseAddrPort("203.0.113.9:6443")},
		OwnAddresses: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
	})
	for _, tt := range []struct{ to, why string }{
		{"10.244.0.5:80", ""},
		{"8.8.8.8:443", ""},
		{"[2001:db8::1]:10250", ""},
		{"192.0.2.7:10250", ""}, // a pod on the host's network, or this machine's kubelet
		{"10.96.0.2:443", ""},
		{"127.0.0.1:8443", "a loopback address"},
		{"127.255.0.1:1", "a loopback address"},
		{"[::1]:80", "a loopback address"},
		{"[::ffff:127.0.0.1]:80", "a loopback address"},
		{"0.0.0.0:80", "an unspecified address"},
		{"0.1.2.3:80", "an unspecified address"},
		{"[::]:80", "an unspecified address"},
		{"169.254.169.254:80", "a link-local address"}, // a cloud's metadata service
		{"[::ffff:169.254.169.254]:80", "a link-local address"},
		{"[fe80::1]:80", "a link-local address"},
		{"[fe80::1%lo]:80", "a link-local address"},
		{"224.0.0.1:80", "a multicast address"},
		{"[ff02::1]:80", "a multicast address"},
		{"255.255.255.255:80", "the broadcast address"},
		{"192.0.2.7:8443", "the API server's own address"},
		{"[2001:db8::7]:2379", "the API server's own address"},
		{"203.0.113.9:6443", "the API server's own address"}, // the advertised one
		{"10.96.0.1:443", "the API server's own address"},
		{"10.96.0.1:80", "the API server's own address"},
		{"[64:ff9b::10.96.0.1]:443", "the API server's own address"},
		{"[64:ff9b::203.0.113.9]:6443", "the API server's own address"},
		{"[2002:a9fe:a9fe::1]:80", "a link-local address"},
		{"[fd00:ec2::254]:80", "a metadata service's address"},
	} {
		to := netip.MustParseAddrPort(tt.to)
		for _, target := range []outbound.Target{outbound.Backend, outbound.Kubelet} {
			err := egress.Check(target, to)
			var refused *outbound.RefusedError
			switch {
			case tt.why == "" && err != nil:
				t.Errorf("%s %s: %v, want it allowed", target, tt.to, err)
			case tt.why != "" && (!errors.As(err, &refused) || refused.Why != tt.why):
				t.Errorf("%s %s: %v, want it refused as %s", target, tt.to, err, tt.why)
			}
		}
		if err := egress.Check(outbound.Configured, to); err != nil {
			t.Errorf("configured %s: %v, want it allowed", tt.to, err)
		}
	}
}

// TestAllowed: ranges that are allowed are, others still are not.
func TestAllowed(t *testing.T) {
	d := outbound.New(outbound.Config{
		MachineAddresses: machine,
		AllowedPrefixes:  []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	if err := d.Check(outbound.Backend, netip.MustParseAddrPort("127.0.0.1:80")); err != nil {
		t.Error(err)
	}
	if d.Check(outbound.Backend, netip.MustParseAddrPort("[::1]:80")) == nil {
		t.Error("[::1]:80 is allowed")
	}
}

// names answers DNS queries for A records, with what answer says at each; for other records with nothing.
func names(t *testing.T, answer func() [4]byte) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() { // ends with conn
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var message dnsmessage.Message
			if message.Unpack(buf[:n]) != nil || len(message.Questions) != 1 {
				continue
			}
			message.Response = true
			message.RCode = dnsmessage.RCodeSuccess
			message.Additionals = nil
			if q := message.Questions[0]; q.Type == dnsmessage.TypeA {
				message.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{
						Name:  q.Name,
						Type:  q.Type,
						Class: q.Class,
						TTL:   0,
					},
					Body: &dnsmessage.AResource{A: answer()},
				}}
			}
			if b, err := message.Pack(); err == nil {
				_, _ = conn.WriteTo(b, from)
			}
		}
	}()
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
		},
	}
}

// TestRebinding: a name is judged by what it means when the connection is made, each time.
func TestRebinding(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "secret")
	}))
	defer backend.Close()
	var asked atomic.Int32
	resolver := names(t, func() [4]byte {
		if asked.Add(1) == 1 {
			return [4]byte{127, 0, 0, 2} // allowed here
		}
		return [4]byte{127, 0, 0, 1}
	})
	d := outbound.New(outbound.Config{
		Resolver:        resolver,
		AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")},
	})
	url := "http://changing.example.:" + strings.TrimPrefix(backend.URL, "http://127.0.0.1:") + "/"
	get := func() error {
		tr := d.Transport(outbound.Options{Target: outbound.Backend})
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	var refused *outbound.RefusedError
	if err := get(); err == nil || errors.As(err, &refused) {
		t.Errorf("the first answer leads to 127.0.0.2, where nobody listens: %v", err)
	}
	if err := get(); !errors.As(err, &refused) || refused.Why != "a loopback address" {
		t.Errorf("the second answer leads to 127.0.0.1: %v, want it refused", err)
	}
}

// TestResolved: what stands behind a service is judged as well as the URL's host.
func TestResolved(t *testing.T) {
	d := outbound.New(outbound.Config{})
	tr := d.Transport(outbound.Options{
		Target: outbound.Backend,
		Resolve: func(context.Context) (string, error) {
			return "127.0.0.1:1", nil
		},
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://svc.ns.svc/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	if _, ok := errors.AsType[*outbound.RefusedError](err); !ok {
		t.Errorf("got %v, want it refused", err)
	}
}

// TestNodesProveTheyAreTheNode: nothing is sent to a server that shows another node's certificate, or the API server's.
func TestNodesProveTheyAreTheNode(t *testing.T) {
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	kubelet := func(name string) string {
		pair, err := ca.Server("server-"+strings.ReplaceAll(name, ":", "-"), pki.Subject{
			Name: name,
			DNS:  []string{"localhost"},
			IPs:  []net.IP{net.IPv4(127, 0, 0, 1)},
		})
		if err != nil {
			t.Fatal(err)
		}
		cert, err := pair.TLS()
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, name)
		}))
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
		srv.Config.ErrorLog = nil
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv.Listener.Addr().String()
	}
	egress := outbound.New(outbound.Config{AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool()}
	tr := egress.NodeTransport(func() *tls.Config { return conf }, func(
		_ context.Context, node string,
	) (string, error) {
		if node == "gone" {
			return "", errors.New("no such node")
		}
		return "127.0.0.1", nil
	}, nil)
	defer tr.CloseIdleConnections()
	get := func(node, at string) (string, error) {
		_, port, _ := net.SplitHostPort(at)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"https://"+net.JoinHostPort(node, port)+"/pods", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	one := kubelet("system:node:one")
	server := kubelet("kube-apiserver")
	if got, err := get("one", one); err != nil || got != "system:node:one" {
		t.Errorf("node one at its own address: %q, %v", got, err)
	}
	// The connection to node one is idle now: it must not serve node two, which claims the same address.
	if _, err := get("two", one); err == nil ||
		!strings.Contains(err.Error(), `the certificate is of "system:node:one", not of "system:node:two"`) {
		t.Errorf("node two at node one's address: %v, want it refused", err)
	}
	if _, err := get("one", server); err == nil ||
		!strings.Contains(err.Error(), `the certificate is of "kube-apiserver"`) {
		t.Errorf("node one at the API server's address: %v, want it refused", err)
	}
	if _, err := get("gone", one); err == nil || !strings.Contains(err.Error(), "no such node") {
		t.Errorf("a node that has gone: %v", err)
	}
}

// TestResponseHeadersAreBounded: a backend does not fill the memory by the header of its response, whatever the
// protocol. A header of usual size passes.
func TestResponseHeadersAreBounded(t *testing.T) {
	egress := outbound.New(outbound.Config{AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, err := strconv.Atoi(r.URL.Query().Get("size"))
		if err != nil {
			t.Error(err)
		}
		for i := range size / 1000 {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("a", 1000))
		}
	}))
	backend.EnableHTTP2 = true
	backend.StartTLS()
	t.Cleanup(backend.Close)
	conf := backend.Client().Transport.(*http.Transport).TLSClientConfig
	for _, target := range []outbound.Target{outbound.Backend, outbound.Kubelet, outbound.Configured} {
		for _, http2 := range []bool{false, true} {
			transport := egress.Transport(outbound.Options{Target: target, TLS: conf.Clone(), HTTP2: http2})
			for _, tt := range []struct {
				size    int
				arrives bool
			}{{30_000, true}, {100_000, false}} {
				url := fmt.Sprintf("%s/?size=%d", backend.URL, tt.size)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := transport.RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				if (err == nil) != tt.arrives {
					t.Errorf("%s, HTTP/2 %v: a header of %d bytes: %v, want it to arrive: %v", target, http2, tt.size,
						err, tt.arrives)
				}
			}
			transport.CloseIdleConnections()
		}
	}
}
