// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// authority signs the certificates of a test's servers.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "ca"},
		NotAfter:              time.Now().AddDate(100, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, text, text, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func (a authority) sign(t *testing.T, group string, names ...string) tls.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "server", Organization: []string{group}},
		NotAfter:     time.Now().AddDate(100, 0, 0),
		DNSNames:     names,
		IPAddresses:  []net.IP{net.IPv4(10, 0, 0, 1)},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}

func (a authority) trust() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
}

// wire is a network of servers in memory.
type wire map[string]*fake

// fake is a server. Its network and its readiness fail on demand.
type fake struct {
	unready  atomic.Bool
	requests atomic.Int32 // without checks
	checks   atomic.Int32
	seen     atomic.Int32 // Authorization headers

	mu     sync.Mutex
	down   bool // refuses connections
	lost   bool // drops packets
	conns  []net.Conn
	queue  chan net.Conn
	server *http.Server
}

func (w wire) add(t *testing.T, host string, cert tls.Certificate) *fake {
	t.Helper()
	f := &fake{queue: make(chan net.Conn)}
	f.server = &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler:           f,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}},
	}
	w[host] = f
	ended := make(chan struct{})
	go func() { // ends with the test
		defer close(ended)
		_ = f.server.ServeTLS(f, "", "")
	}()
	t.Cleanup(func() {
		_ = f.server.Close()
		f.mu.Lock()
		for _, c := range f.conns {
			_ = c.Close() // the buffers' goroutines read or write
		}
		f.mu.Unlock()
		<-ended
	})
	return f
}

func (f *fake) Accept() (net.Conn, error) {
	c, ok := <-f.queue
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (f *fake) Close() error {
	close(f.queue)
	return nil
}

func (f *fake) Addr() net.Addr { return &net.TCPAddr{} }

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		f.seen.Add(1)
	}
	switch r.URL.Path {
	case "/readyz":
		f.checks.Add(1)
		if f.unready.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		return
	case "/watch":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	f.requests.Add(1)
	_, _ = io.Copy(w, r.Body)
}

// dial is a Transport's.
func (w wire) dial(ctx context.Context, _, host string) (net.Conn, error) {
	f := w[host]
	f.mu.Lock()
	down := f.down
	lost := f.lost
	f.mu.Unlock()
	if lost {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(otherDial):
			return nil, os.ErrDeadlineExceeded
		}
	}
	if down {
		return nil, syscall.ECONNREFUSED
	}
	near, far := net.Pipe()
	f.mu.Lock()
	f.conns = append(f.conns, near, far)
	f.mu.Unlock()
	f.queue <- buffer(far, f)
	return buffer(near, f), nil
}

// buffered is a connection that buffers what is written, as the kernel does. No packet leaves it while the server is
// lost.
type buffered struct {
	net.Conn
	of    *fake
	queue chan []byte
	ended chan struct{}
	end   func()
}

func buffer(c net.Conn, of *fake) net.Conn {
	b := &buffered{
		Conn:  c,
		of:    of,
		queue: make(chan []byte, 1000),
		ended: make(chan struct{}),
	}
	b.end = sync.OnceFunc(func() { close(b.ended) })
	go b.send() // ends with the connection
	return b
}

func (b *buffered) send() {
	defer func() { _ = b.Conn.Close() }()
	for {
		select {
		case p := <-b.queue:
			if _, err := b.Conn.Write(p); err != nil {
				return
			}
		case <-b.ended:
			return
		}
	}
}

func (b *buffered) Close() error {
	b.end()
	return b.Conn.Close()
}

func (b *buffered) Write(p []byte) (int, error) {
	b.of.mu.Lock()
	lost := b.of.lost
	b.of.mu.Unlock()
	if lost {
		return len(p), nil
	}
	select {
	case b.queue <- slices.Clone(p):
		return len(p), nil
	case <-b.ended:
		return 0, net.ErrClosed
	}
}

// kill ends the process of a server: connections break, and further ones are refused.
func (f *fake) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = true
	for _, c := range f.conns {
		_ = c.Close()
	}
}

// vanish drops all packets of and to a server.
func (f *fake) vanish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = true
}

const (
	given  = "10.0.0.1:6443"
	second = "10.0.0.2:6443"
	third  = "10.0.0.3:6443"
)

// trial is an agent's client at three servers.
type trial struct {
	wire   wire
	all    *Servers
	client *http.Client
}

func newTrial(t *testing.T, cfg Config) *trial {
	t.Helper()
	ca := newAuthority(t)
	tr := &trial{wire: wire{}}
	for _, host := range []string{given, second, third} {
		tr.wire.add(t, host, ca.sign(t, "", Name))
	}
	tr.start(t, cfg, ca)
	return tr
}

func (tr *trial) start(t *testing.T, cfg Config, ca authority) {
	t.Helper()
	cfg.Given = "https://" + given
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	tr.all = New(cfg)
	transport := tr.all.transport(ca.trust(), tr.wire.dial)
	tr.client = &http.Client{Transport: transport}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		_ = tr.all.Run(ctx, func() {})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		transport.keep(nil)
		synctest.Wait()
	})
}

func (tr *trial) get(t *testing.T, path, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+given+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret")
	return tr.client.Do(req)
}

// answered sends requests until one is answered, and returns how long that took.
func (tr *trial) answered(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		resp, err := tr.get(t, "/", "hello")
		if err == nil {
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || string(text) != "hello" {
				t.Errorf("got %q, %v; want the body", text, err)
			}
			return time.Since(began)
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("no answer in a minute: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestChangesToAServerThatIsReady: whatever happens to a server, in 5 s the requests and watches are at another one.
func TestChangesToAServerThatIsReady(t *testing.T) {
	for name, fail := range map[string]func(*fake){
		"killed":    (*fake).kill,
		"vanished":  (*fake).vanish,
		"not ready": func(f *fake) { f.unready.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTrial(t, Config{})
				tr.all.set([]string{second, third})
				if d := tr.answered(t); d != 0 || tr.wire[given].requests.Load() != 1 {
					t.Fatalf("the first request took %s, or went elsewhere", d)
				}
				watch, err := tr.get(t, "/watch", "")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour) // healthy: nothing changes
				if now, _ := tr.all.now(); now != given {
					t.Errorf("the current server is %s, want %s", now, given)
				}
				began := time.Now()
				fail(tr.wire[given])
				if _, err := io.ReadAll(watch.Body); err == nil {
					t.Error("the watch ended well, want an error")
				}
				_ = watch.Body.Close()
				tr.answered(t)
				if d := time.Since(began); d > 4*time.Second {
					t.Errorf("the change took %s", d)
				}
				if n := tr.wire[second].requests.Load() + tr.wire[third].requests.Load(); n != 1 {
					t.Errorf("%d requests at the others, want 1", n)
				}
			})
		})
	}
}

// TestUnsentRequestsGoElsewhere: a request that the current server did not get, with its body, fails no one.
func TestUnsentRequestsGoElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, Config{})
		tr.all.set([]string{second})
		tr.wire[given].kill()
		resp, err := tr.get(t, "/", "hello")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(text) != "hello" {
			t.Errorf("got %q, want the body", text)
		}
	})
}

// TestStaysWhereNoOtherIsReady: and comes back to the server as soon as it answers.
func TestStaysWhereNoOtherIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, Config{})
		tr.all.set([]string{second})
		tr.wire[given].unready.Store(true)
		tr.wire[second].unready.Store(true)
		time.Sleep(time.Minute)
		if d := tr.answered(t); d != 0 || tr.wire[given].requests.Load() != 1 {
			t.Errorf("took %s, %d requests at the given server", d, tr.wire[given].requests.Load())
		}
	})
}

// TestQuietWithOneServer: nothing is sent that no one asked for.
func TestQuietWithOneServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, Config{})
		tr.answered(t)
		tr.all.set([]string{given})
		time.Sleep(24 * time.Hour)
		if n := tr.wire[given].checks.Load(); n != 0 {
			t.Errorf("%d checks in a day, want none", n)
		}
	})
}

// TestOthersGetNoCredentials: who is in the list without being an API server sees no request, also when no other
// answers.
func TestOthersGetNoCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t)
		tr := &trial{wire: wire{}}
		tr.wire.add(t, given, ca.sign(t, "", "other.example"))
		tr.wire.add(t, second, newAuthority(t).sign(t, "", Name)) // of another CA
		tr.wire.add(t, third, ca.sign(t, nodesGroup, Name))       // a node that has the name
		fourth := "10.0.0.4:6443"
		tr.wire.add(t, fourth, ca.sign(t, "", "10-0-0-4.default.pod", "web.default.svc"))
		tr.start(t, Config{}, ca)
		tr.all.set([]string{second, third, fourth})
		tr.answered(t)
		tr.wire[given].kill()
		for range 10 {
			if resp, err := tr.get(t, "/", "hello"); err == nil {
				_ = resp.Body.Close()
				t.Fatal("the request was answered")
			}
			time.Sleep(10 * time.Second)
		}
		for host, f := range tr.wire {
			if host != given && f.requests.Load()+f.checks.Load()+f.seen.Load() > 0 {
				t.Errorf("%s got a request", host)
			}
		}
	})
}

// TestPluginsForCredentials: who has its credentials from a plugin of the kubeconfig changes to another server too, and
// shows them there.
func TestPluginsForCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t)
		tr := &trial{wire: wire{}}
		tr.wire.add(t, given, ca.sign(t, "", Name))
		tr.wire.add(t, second, ca.sign(t, "", Name))
		tr.start(t, Config{}, ca)
		tr.all.set([]string{second})
		cfg, err := tr.all.REST(&rest.Config{
			Host: "https://" + given,
			Dial: tr.wire.dial,
			TLSClientConfig: rest.TLSClientConfig{
				ServerName: Name,
				CAData:     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}),
			},
			ExecProvider: &clientcmdapi.ExecConfig{
				APIVersion:      "client.authentication.k8s.io/v1",
				InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
				Command:         "echo",
				Args: []string{
					`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"secret"}}`,
				},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		to, ok := cfg.Transport.(*Transport)
		if !ok {
			t.Fatalf("the transport is a %T", cfg.Transport)
		}
		t.Cleanup(func() { to.keep(nil) })
		client, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{given, second} {
			resp, err := client.Get("https://" + given + "/")
			for range 50 { // what was under way is the caller's to repeat
				if err == nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
				resp, err = client.Get("https://" + given + "/")
			}
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if n := tr.wire[host].seen.Load(); n != 1 {
				t.Errorf("%d requests with credentials at %s, want 1", n, host)
			}
			tr.wire[given].kill()
		}
	})
}

// TestListIsBounded: no more than Most, no address of this machine or of many, never nothing.
func TestListIsBounded(t *testing.T) {
	s := New(Config{Given: "https://" + given})
	e := &corev1.Endpoints{}
	for i := range 100 {
		e.Subsets = append(e.Subsets, corev1.EndpointSubset{
			Addresses: []corev1.EndpointAddress{
				{IP: net.IPv4(10, 0, 1, byte(i)).String()},
				{IP: "127.0.0.1"},
				{IP: "169.254.169.254"},
				{IP: "0.0.0.0"},
				{IP: "::ffff:127.0.0.1"},
			},
			Ports: []corev1.EndpointPort{{Port: 6443}},
		})
	}
	s.set(endpointsOf(e))
	list := s.List()
	if len(list) != Most || list[0] != given {
		t.Errorf("%d servers, the first %s; want %d and %s", len(list), list[0], Most, given)
	}
	for _, host := range list[1:] {
		if !strings.HasPrefix(host, "10.0.1.") {
			t.Errorf("%s is in the list", host)
		}
	}
	s.set(nil)
	if got := s.List(); !slices.Equal(got, list) {
		t.Errorf("after an empty list: %v", got)
	}
}

// TestListIsKept: on disk for the next start of the same agent, readable by its owner alone.
func TestListIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers.json")
	New(Config{Given: "https://" + given, File: file}).set([]string{given, third, second})
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v; want 0600", info, err)
	}
	if got := New(Config{Given: "https://" + given, File: file}).List(); !slices.Equal(got, []string{given, second, third}) {
		t.Errorf("read again: %v", got)
	}
	if got := New(Config{Given: "https://" + second, File: file}).List(); !slices.Equal(got, []string{second}) {
		t.Errorf("of another cluster: %v", got)
	}
	if err := os.WriteFile(file, []byte(`{"given":"`+given+`","servers":["127.0.0.1:1","x","10.0.0.9:0"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := New(Config{Given: "https://" + given, File: file}).List(); !slices.Equal(got, []string{given}) {
		t.Errorf("of wrong addresses: %v", got)
	}
}

// TestOnlyVerifiedServersHaveOthers: where the kubeconfig does not verify the server, it stays the only one.
func TestOnlyVerifiedServersHaveOthers(t *testing.T) {
	for url, cfg := range map[string]*rest.Config{
		"http://" + given:            {},
		"https://" + given + "/path": {},
		"https://" + given:           {BearerToken: "x"}, // no CA: those of the machine do not know other servers
	} {
		cfg.Host = url
		got, err := New(Config{Given: url}).REST(cfg)
		if err != nil || got.Transport != nil {
			t.Errorf("%s: %v, %v; want the configuration itself", url, got, err)
		}
	}
	s := New(Config{Given: "https://" + given})
	s.set([]string{second})
	s.Transport(&tls.Config{InsecureSkipVerify: true})
	s.set([]string{third})
	if got := s.List(); !slices.Equal(got, []string{given}) {
		t.Errorf("without verification: %v", got)
	}
}

// TestAnonymousShowsNoCertificate: a role's token is not sent with the node's certificate.
func TestAnonymousShowsNoCertificate(t *testing.T) {
	s := New(Config{Given: "https://" + given})
	conf := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{}},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return nil, errors.New("asked")
		},
	}
	out, ok := Anonymous(&rest.Config{Host: "https://" + given, BearerToken: "x", Transport: s.Transport(conf)}).
		Transport.(*Transport)
	if !ok || out.tls.GetClientCertificate != nil || out.tls.Certificates != nil {
		t.Errorf("got %+v", out)
	}
}

// TestRootsChange: connections made from now on are verified by the new CAs, those that are open stay, and are still
// closed with the others.
func TestRootsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t)
		tr := &trial{wire: wire{}}
		for _, host := range []string{given, second, third} {
			tr.wire.add(t, host, ca.sign(t, "", Name))
		}
		tr.start(t, Config{}, ca)
		open, err := tr.get(t, "/watch", "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = open.Body.Close() }()
		tr.all.SetRoots(newAuthority(t).trust().RootCAs)
		if resp, err := tr.get(t, "/", "hello"); err == nil {
			_ = resp.Body.Close()
			t.Error("a server of the previous CA is trusted")
		}
		ended := make(chan error, 1)
		go func() { // ends with the response
			_, err := open.Body.Read(make([]byte, 1))
			ended <- err
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("the open request ended: %v", err)
		default:
		}
		tr.all.SetRoots(ca.trust().RootCAs)
		tr.answered(t)
		transport, _ := tr.client.Transport.(*Transport)
		transport.CloseAll()
		if err := <-ended; err == nil {
			t.Error("CloseAll leaves a connection from before the change open")
		}
	})
}
