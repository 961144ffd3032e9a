// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/server"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	c := a.sign(t, "ca", true)
	a.cert = c.Leaf
	a.key = c.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t *testing.T, name string, ca bool) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  ca,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent := a.cert
	signer := a.key
	if parent == nil {
		parent = tmpl
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

type pods []*corev1.Pod

func (p pods) Find(ns, name, _ string) *corev1.Pod {
	for _, o := range p {
		if o.Namespace == ns && o.Name == name {
			return o
		}
	}
	return nil
}
func (p pods) All() []*corev1.Pod { return p }

type fixture struct {
	base string
	ca   *authority
	rt   *critest.Fake
}

func (f *fixture) client(t *testing.T, name string) *http.Client {
	conf := &tls.Config{RootCAs: f.ca.pool}
	if name != "" {
		conf.Certificates = []tls.Certificate{f.ca.sign(t, name, false)}
	}
	tr := &http.Transport{TLSClientConfig: conf}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (f *fixture) get(t *testing.T, who, path string) (int, string) {
	t.Helper()
	resp, err := f.client(t, who).Get(f.base + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func serve(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{ca: newAuthority(t), rt: critest.NewFake()}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c"}, {Name: "late"}},
		},
	}
	s := server.New(server.Config{
		TLS:          &tls.Config{Certificates: []tls.Certificate{f.ca.sign(t, "node", false)}},
		ClientCA:     func() *x509.CertPool { return f.ca.pool },
		AllowedNames: []string{"api"},
		ByToken: func(w http.ResponseWriter, r *http.Request, verb string, subresources []string) bool {
			asked := fmt.Sprintf("%s %v", verb, subresources)
			if r.Header.Get("Authorization") == "Bearer "+asked {
				return true
			}
			http.Error(w, asked, http.StatusForbidden)
			return false
		},
		Pods:    pods{pod},
		Runtime: cri.InProcess(f.rt).Runtime,
		Pages: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("page " + r.URL.Path)) // the client may be gone
		}),
		LogDir: nodeLogs(t),
		Log:    slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }() // ends with cancel
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	f.base = "https://" + listener.Addr().String()
	f.container(t)
	return f
}

// nodeLogs is a directory of logs with a file, links within it and out of it, and a pipe; next to it is a secret.
func nodeLogs(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	dir := filepath.Join(base, "logs")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "pod"), 0o750),
		os.WriteFile(filepath.Join(dir, "pod", "0.log"), []byte("a line\n"), 0o600),
		os.WriteFile(filepath.Join(base, "secret"), []byte("secret"), 0o600),
		os.Symlink("0.log", filepath.Join(dir, "pod", "latest")),
		os.Symlink(base, filepath.Join(dir, "out")),
		os.Symlink("../../secret", filepath.Join(dir, "pod", "up")),
		unix.Mkfifo(filepath.Join(dir, "pod", "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// container runs c in the fake runtime, with one line in its log.
func (f *fixture) container(t *testing.T) {
	t.Helper()
	f.rt.SetProgram(func(*runtimeapi.ContainerConfig) critest.Program {
		return critest.Program{Output: []string{"hello log"}}
	})
	box := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "ns", Uid: "u"},
		LogDirectory: t.TempDir(),
		Labels:       map[string]string{runtimestate.LabelPodUID: "u"},
	}
	b, err := f.rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.rt.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId:  b.GetPodSandboxId(),
		SandboxConfig: box,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
			LogPath:  "c/0.log",
			Labels:   map[string]string{runtimestate.LabelPodUID: "u"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.rt.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: response.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
}

func TestAnswers(t *testing.T) {
	fixture := serve(t)
	for _, tt := range []struct {
		who, path string
		code      int
		text      string
	}{
		{"", "/healthz", 200, "ok"},
		{"", "/pods", 401, "Unauthorized"},
		{"mallory", "/pods", 403, "Forbidden (user=mallory"},
		{"api", "/pods", 200, `"kind":"PodList"`},
		{"api", "/containerLogs/ns/web/c", 200, "hello log\n"},
		{"api", "/containerLogs/ns/web/c?tailLines=0", 200, ""},
		{"api", "/containerLogs/ns/web/c?tailLines=x", 422, "tailLines: Invalid value"},
		{"api", "/containerLogs/ns/web/none", 404, `container "none" not found in pod "web"`},
		{"api", "/containerLogs/ns/none/c", 404, "pod does not exist"},
		{
			"api", "/containerLogs/ns/web/late", 400,
			`container "late" in pod "web" is waiting to start: ContainerCreating`,
		},
		{
			"api", "/containerLogs/ns/web/c?previous=true", 400,
			`previous terminated container "c" in pod "web" not found`,
		},
		{"api", "/exec/ns/web/late?command=x&output=1", 404, `container not found ("late")`},
		{"api", "/exec/ns/web/c?output=1", 400, "you must specify at least 1 command"},
		{"api", "/portForward/ns/web?port=99999", 400, `invalid port "99999"`},
		{"", "/debug/pprof/", 401, "Unauthorized"},
		{"mallory", "/debug/pprof/heap", 403, "Forbidden (user=mallory"},
		{"api", "/debug/pprof/", 200, "goroutine"},
		{"api", "/debug/pprof/cmdline", 404, "Unknown profile"},
		{"", "/statusz", 401, "Unauthorized"},
		{"api", "/statusz", 200, "page /statusz"},
		{"api", "/flagz", 200, "page /flagz"},
		{"", "/configz", 401, "Unauthorized"},
		{"api", "/configz", 200, "page /configz"},
		{"", "/logs/", 401, "Unauthorized"},
		{"mallory", "/logs/pod/0.log", 403, "Forbidden (user=mallory"},
		{"api", "/logs/", 200, `<a href="pod/">pod/</a>`},
		{"api", "/logs/pod/0.log", 200, "a line\n"},
		{"api", "/logs/pod/latest", 200, "a line\n"},
		{"api", "/logs/none", 404, ""},
		{"api", "/logs/pod/pipe", 404, ""},
		{"api", "/logs/out", 404, ""},
		{"api", "/logs/out/secret", 404, ""},
		{"api", "/logs/pod/up", 404, ""},
		{"api", "/logs/%2e%2e/secret", 404, ""},
		{"api", "/logs/..%2fsecret", 404, ""},
	} {
		code, text := fixture.get(t, tt.who, tt.path)
		if code != tt.code || !strings.Contains(text, tt.text) {
			t.Errorf("%s as %q: got %d %q, want %d %q", tt.path, tt.who, code, text, tt.code, tt.text)
		}
	}
}

// TestTokens: which right each path needs. What runs a program needs the right to create, whatever the method.
func TestTokens(t *testing.T) {
	fixture := serve(t)
	for _, tt := range []struct{ method, path, asks string }{
		{"GET", "/metrics", "get [metrics]"},
		{"GET", "/metrics/resource", "get [metrics]"},
		{"HEAD", "/stats/summary", "get [stats]"},
		{"GET", "/logs/pod/0.log", "get [log]"},
		{"GET", "/pods", "get [pods proxy]"},
		{"GET", "/runningpods/", "get [pods proxy]"},
		{"GET", "/statusz", "get [statusz proxy]"},
		{"GET", "/configz", "get [configz proxy]"},
		{"GET", "/flagz", "get [proxy]"},
		{"GET", "/containerLogs/ns/web/c", "get [proxy]"},
		{"GET", "/exec/ns/web/c?command=x", "create [proxy]"},
		{"POST", "/attach/ns/web/c", "create [proxy]"},
		{"GET", "/portForward/ns/web", "create [proxy]"},
		{"POST", "/run/ns/web/c", "create [proxy]"},
		{"GET", "/metrics/../exec/ns/web/c", "create [proxy]"},
		{"GET", "/%65xec/ns/web/c", "create [proxy]"},
		{"GET", "/metrics%2f..%2fexec/ns/web/c", "create [proxy]"},
		{"DELETE", "/keelson/service/ns/web", "delete [proxy]"},
		{"GET", "/", "get [proxy]"},
	} {
		ask := func(token string) (int, string) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, fixture.base+tt.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := fixture.client(t, "").Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, strings.TrimSpace(string(b))
		}
		if code, body := ask("x"); code != http.StatusForbidden || body != tt.asks && tt.method != "HEAD" {
			t.Errorf("%s %s: %d and asks for %q, want %q", tt.method, tt.path, code, body, tt.asks)
		}
		if code, _ := ask(""); code != http.StatusUnauthorized {
			t.Errorf("%s %s without a token: %d", tt.method, tt.path, code)
		}
		if code, _ := ask(tt.asks); code == http.StatusForbidden || code == http.StatusUnauthorized {
			t.Errorf("%s %s with the right: %d", tt.method, tt.path, code)
		}
	}
}

func TestStreamsArePassedOn(t *testing.T) {
	t.Run("in the clear", func(t *testing.T) { testStreamsArePassedOn(t, httptest.NewServer) })
	// As `keelson runtime` does, and containerd when it is configured so.
	t.Run("by TLS with a certificate of the runtime's own", func(t *testing.T) {
		testStreamsArePassedOn(t, httptest.NewTLSServer)
	})
}

func testStreamsArePassedOn(t *testing.T, listen func(http.Handler) *httptest.Server) {
	fixture := serve(t)
	backend := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "SPDY/3.1" {
			http.Error(w, "no upgrade", http.StatusBadRequest)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		_ = rw.Flush()
		var frame [12]byte
		_, _ = io.ReadFull(rw, frame[:])
		_, _ = fmt.Fprintf(rw, "echo %s", frame[8:])
		_ = rw.Flush()
	}))
	defer backend.Close()
	fixture.rt.SetStreamURL(backend.URL)
	addr := strings.TrimPrefix(fixture.base, "https://")
	conn, err := tls.Dial("tcp", addr, &tls.Config{
		RootCAs:      fixture.ca.pool,
		Certificates: []tls.Certificate{fixture.ca.sign(t, "api", false)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "POST /exec/ns/web/c?command=sh&input=1&output=1 HTTP/1.1\r\nHost: "+
		"x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("answer: %v, %v; want 101", resp, err)
	}
	if _, err := io.WriteString(conn, "\x00\x00\x00\x01\x00\x00\x00\x04hi!\n"); err != nil { // a data frame
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); err != nil || line != "echo hi!\n" {
		t.Errorf("through the stream: got %q, %v; want echo hi!", line, err)
	}
}

// TestKubeletTrustsItsAuthorityAlone: the right name from another authority, even the one that signed the kubelet's
// own certificate, is refused; an authority that is learned later counts from then on.
func TestKubeletTrustsItsAuthorityAlone(t *testing.T) {
	serving := newAuthority(t)
	clients := newAuthority(t)
	var trusted atomic.Pointer[x509.CertPool]
	trusted.Store(x509.NewCertPool())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(server.Config{
		TLS:          &tls.Config{Certificates: []tls.Certificate{serving.sign(t, "node", false)}},
		ClientCA:     trusted.Load,
		AllowedNames: []string{"api"},
		Pods:         pods{},
		Log:          slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }() // ends with cancel
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	get := func(by *authority) int {
		tr := &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs:      serving.pool,
			Certificates: []tls.Certificate{by.sign(t, "api", false)},
		}}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get("https://" + listener.Addr().String() + "/pods")
		if err != nil {
			return 0 // the handshake failed
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for _, by := range []*authority{serving, clients} {
		if code := get(by); code == http.StatusOK {
			t.Errorf("before any authority is known: %d", code)
		}
	}
	trusted.Store(clients.pool)
	if code := get(clients); code != http.StatusOK {
		t.Errorf("the API server: %d, want 200", code)
	}
	if code := get(serving); code == http.StatusOK {
		t.Errorf("a client of the kubelet's own authority: %d", code)
	}
}
