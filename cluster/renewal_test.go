// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/client/servers"
	"keelson/cluster/credentials"
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
	for _, l := range c.keys.Leaves(c.cfg.realNode()) {
		before[l.Name()] = l.Certificate()
	}
	kubeconfig, err := os.ReadFile(c.dir.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	done, err := credentials.Renew(c.dir, nil)
	if err != nil || len(done) < len(before) {
		t.Fatalf("renewed %d certificates, %v, want at least %d", len(done), err, len(before))
	}
	waittest.Right(t, "every certificate in use is the new one", func() string {
		for _, l := range c.keys.Leaves(c.cfg.realNode()) {
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
		RootCAs:    c.keys.CA.Pool(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if !conn.ConnectionState().PeerCertificates[0].Equal(c.keys.Server.Certificate().Leaf) {
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
	if err := json.Unmarshal(get(credentials.ListPath), &list); err != nil {
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
	leaf := c.keys.Server.Certificate().Leaf
	for at, want := range map[time.Time]string{
		leaf.NotAfter.Add(-time.Hour):  "",
		leaf.NotAfter.Add(time.Hour):   "has expired",
		leaf.NotBefore.Add(-time.Hour): "is valid from",
	} {
		err := c.keys.Serving.Valid(at)
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
	kept, err := credentials.FollowKubeconfig(path, servers.New(servers.Config{}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- kept.Run(ctx, func() {}) }() // ends with ctx
	cl := kubernetes.NewForConfigOrDie(kept.REST)
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

// TestRunningClusterTakesKeysOver: each key is replaced while the server runs. Clients with the old certificates and
// tokens go on until the end, and no further.
func TestRunningClusterTakesKeysOver(t *testing.T) {
	c, admin := serve(t, func(*Config) {})
	ctx := t.Context()
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "robot"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	connect := func() kubernetes.Interface {
		to, err := clientcmd.BuildConfigFromFlags("", c.dir.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		return kubernetes.NewForConfigOrDie(to)
	}
	works := func(cl kubernetes.Interface) error {
		_, err := cl.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		return err
	}
	issue := func() string {
		made, err := connect().CoreV1().ServiceAccounts("default").CreateToken(ctx, "robot",
			&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made.Status.Token
	}
	accepted := func(token string) bool {
		got, err := connect().AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Status.Authenticated
	}
	oldToken := issue()
	before, err := c.keys.ServerFingerprints(&c.cfg.API.Tokens)
	if err != nil {
		t.Fatal(err)
	}
	published := func(want int) string {
		api := connect().CoreV1().ConfigMaps(metav1.NamespaceSystem)
		for name, keys := range map[string][]string{
			credentials.AuthenticationInfoName: {"client-ca-file", "requestheader-client-ca-file"},
			credentials.KubeletClientAuthority: {credentials.ClientCAKey, corev1.ServiceAccountRootCAKey},
		} {
			cm, err := api.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			for _, key := range keys {
				if certs, err := pki.Certificates([]byte(cm.Data[key])); err != nil || len(certs) != want {
					return fmt.Sprintf("%s %s has %d certificates (%v), want %d", name, key, len(certs), err, want)
				}
			}
		}
		to, err := clientcmd.BuildConfigFromFlags("", c.dir.Kubeconfig())
		if err != nil {
			return err.Error()
		}
		if certs, err := pki.Certificates(to.CAData); err != nil || len(certs) != want {
			return fmt.Sprintf("the kubeconfig has %d authorities (%v), want %d", len(certs), err, want)
		}
		return ""
	}
	rotate := func(step string, authorities int) {
		t.Helper()
		for _, name := range credentials.Names {
			if _, err := (credentials.Rotation{Dir: c.dir, Name: name, Step: step}).Run(ctx); err != nil {
				t.Fatalf("%s %s: %v", name, step, err)
			}
		}
		waittest.Right(t, "after "+step, func() string { return published(authorities) })
	}
	rotate("trust", 2)
	rotate("use", 2)
	waittest.Right(t, "the new keys sign", func() string {
		ca, _ := c.keys.CA.Signer()
		if c.keys.Server.Certificate().Leaf.CheckSignatureFrom(ca) != nil {
			return "the server has a certificate of the old key"
		}
		return errorText(works(connect()))
	})
	waittest.Right(t, "the user of the old certificate is listed", func() string {
		if err := works(admin); err != nil {
			return err.Error()
		}
		if c.keys.Clients.Replaced()["admin"].IsZero() {
			return "admin is not listed"
		}
		return ""
	})
	var newToken string
	waittest.Right(t, "a token of the new key", func() string {
		newToken = issue()
		oldHeader, _, _ := strings.Cut(oldToken, ".") // it names the key
		if strings.HasPrefix(newToken, oldHeader+".") {
			return "the old key signs"
		}
		return ""
	})
	if !accepted(oldToken) || !accepted(newToken) {
		t.Error("a token of the old or the new key is not accepted after use")
	}
	if _, err := (credentials.Rotation{Dir: c.dir, Name: "ca", Step: "finish"}).Run(ctx); err == nil ||
		!strings.Contains(err.Error(), "in use by admin") {
		t.Errorf("finish while a certificate of the old key is in use: %v", err)
	}
	for _, name := range []string{"ca", credentials.TokenIdentity} {
		if _, err := (credentials.Rotation{Dir: c.dir, Name: name, Step: "finish", Force: true}).Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	rotate("finish", 1)
	waittest.Right(t, "only the new keys are trusted", func() string {
		stored, err := admin.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err == nil {
			return fmt.Sprintf("the old kubeconfig lists %d namespaces", len(stored.Items))
		}
		if accepted(oldToken) || !accepted(newToken) {
			return "the old token is accepted, or the new one is not"
		}
		return errorText(works(connect()))
	})
	now, err := c.keys.ServerFingerprints(&c.cfg.API.Tokens)
	if err != nil {
		t.Fatal(err)
	}
	for line := range before.Own {
		if now.Own[line] || !now.Retired[line] {
			t.Errorf("%s: in use %v, retired %v", line, now.Own[line], now.Retired[line])
		}
	}
	if left, err := credentials.Rotations(c.dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
