// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"keelson/client/servers"
	"keelson/lib/waittest"
	"keelson/pki"
)

// TestRunningClusterTakesCertificatesOver: what is renewed on disk is served, shown and in the kubeconfigs at once, and
// the server lists it.
func TestRunningClusterTakesCertificatesOver(t *testing.T) {
	mine := filepath.Join(t.TempDir(), "mine.pem")
	c, admin := serve(t, func(cfg *Config) {
		other, err := pki.Open(t.TempDir(), "other")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(mine, other.CertPEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.API.Authentication.ClientCAFile = mine
	})
	before := map[string]*tls.Certificate{}
	for _, l := range c.keys.leaves(c.cfg) {
		before[l.Name()] = l.Certificate()
	}
	kubeconfig, err := os.ReadFile(c.dir.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	done, err := RenewCertificates(c.dir, nil)
	if err != nil || len(done) < len(before) {
		t.Fatalf("renewed %d certificates, %v, want at least %d", len(done), err, len(before))
	}
	waittest.Right(t, "every certificate in use is the new one", func() string {
		for _, l := range c.keys.leaves(c.cfg) {
			if l.Certificate() == before[l.Name()] {
				return l.Name() + " is the old one"
			}
			b, err := os.ReadFile(c.dir.Sub("pki/" + l.Name() + ".kubeconfig"))
			if err == nil && !bytes.Contains(b, []byte(c.URL())) {
				return "the kubeconfig of " + l.Name() + " is broken"
			}
		}
		return ""
	})
	conn, err := tls.Dial("tcp", c.listener.Addr().String(), &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: "localhost",
		RootCAs:    c.keys.ca.Pool(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if !conn.ConnectionState().PeerCertificates[0].Equal(c.keys.server.Certificate().Leaf) {
		t.Error("the server presents another certificate than the current one")
	}
	if now, err := os.ReadFile(c.dir.Kubeconfig()); err != nil || bytes.Equal(now, kubeconfig) {
		t.Errorf("the administrator's kubeconfig has the old certificate: %v", err)
	}
	get := func(path string) []byte {
		b, err := admin.Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return b
	}
	var list []pki.Info
	if err := json.Unmarshal(get(certificatesPath), &list); err != nil {
		t.Fatal(err)
	}
	listed := map[string]pki.Renewal{}
	for _, info := range list {
		listed[info.Name] = info.Renewal
	}
	for name, want := range map[string]pki.Renewal{
		"apiserver":         pki.BySelf,
		"admin":             pki.BySelf,
		"front-proxy-ca":    pki.ByCommand,
		"client-ca-file":    pki.ByOwner,
		"kubelet-client-ca": pki.ByCommand,
	} {
		if listed[name] != want {
			t.Errorf("certificate %s is renewed by %q, want %q", name, listed[name], want)
		}
	}
	if !strings.Contains(string(get("/metrics")), `keelson_certificate_expiration_seconds{name="client-ca-file"} `) {
		t.Error("there is no metric of --client-ca-file")
	}
	get("/readyz/serving-certificate")
}

// TestExpiredServingCertificate: a server whose certificate clients reject says so.
func TestExpiredServingCertificate(t *testing.T) {
	c, _ := serve(t, func(*Config) {})
	leaf := c.keys.server.Certificate().Leaf
	for at, want := range map[time.Time]string{
		leaf.NotAfter.Add(-time.Hour):  "",
		leaf.NotAfter.Add(time.Hour):   "has expired",
		leaf.NotBefore.Add(-time.Hour): "is valid from",
	} {
		err := c.keys.serving.Valid(at)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("at %s: %v, want %q", at, err, want)
		}
	}
}

// TestFollowKubeconfig: a role in a process of its own shows the certificate of its kubeconfig as it is now, and a file
// that is broken for a moment changes nothing.
func TestFollowKubeconfig(t *testing.T) {
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	own, err := ca.ServerLeaf("server", pki.Subject{Name: "server", DNS: []string{"localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	shown := ""
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		shown = r.TLS.PeerCertificates[0].Subject.CommonName
		w.WriteHeader(http.StatusNotFound)
	}))
	srv.TLS = &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: own.Serve,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      ca.Pool(),
	}
	srv.StartTLS()
	defer srv.Close()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	put := func(name string) {
		pair, err := ca.Client(name, pki.Subject{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		b, err := pki.Kubeconfig("role", srv.URL, "localhost", ca.CertPEM(), pair)
		if err != nil {
			t.Fatal(err)
		}
		if err := pki.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("first")
	to, follow, err := followKubeconfig(path, servers.New(servers.Config{}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- follow(ctx, func() {}) }() // ends with ctx
	cl := kubernetes.NewForConfigOrDie(to)
	call := func() string {
		_, _ = cl.Discovery().ServerVersion() // 404: the certificate is what matters
		mu.Lock()
		defer mu.Unlock()
		return shown
	}
	if got := call(); got != "first" {
		t.Errorf("shows the certificate of %q, want first", got)
	}
	if err := os.WriteFile(path, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := call(); got != "first" {
		t.Errorf("after a broken file: shows the certificate of %q, want first", got)
	}
	put("second")
	waittest.Right(t, "the second certificate is shown", func() string {
		if got := call(); got != "second" {
			return got
		}
		return ""
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestNodeFollowsRenewedAuthority: a joined node puts a renewed authority into its kubeconfig, and another one not.
func TestNodeFollowsRenewedAuthority(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	known := ca.CertPEM()
	path := filepath.Join(t.TempDir(), "kubelet.kubeconfig")
	pair, err := ca.Client("node", pki.Subject{Name: "system:node:one"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := pki.Kubeconfig("kubelet", "https://127.0.0.1:6443", "", known, pair)
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Renew(dir, []string{"ca"}, nil); err != nil {
		t.Fatal(err)
	}
	renewed, err := pki.Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ told, want []byte }{
		{nil, known},
		{other.CertPEM(), known},
		{append(bytes.Clone(known), other.CertPEM()...), known},
		{renewed.CertPEM(), renewed.CertPEM()},
	} {
		if err := followAuthority(path, known, string(step.told), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		to, err := loadIfThere(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(to.CAData, step.want) {
			t.Errorf("told of\n%s\nthe node trusts\n%s\nwant\n%s", step.told, to.CAData, step.want)
		}
	}
}
