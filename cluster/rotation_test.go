// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver/options"
	"keelson/cluster"
	"keelson/lib/waittest"
	"keelson/pki"
)

// replace puts content in the place of a file as careful programs do.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func authority(t *testing.T, name string) *pki.Authority {
	t.Helper()
	ca, err := pki.Open(t.TempDir(), name)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// shownTo is the common name of the authority of the certificate that the server shows to who asks for a name.
func shownTo(ctx context.Context, access *rest.Config, name string) string {
	u, err := url.Parse(access.Host)
	if err != nil {
		return err.Error()
	}
	// what is shown is looked at
	d := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{ServerName: name, InsecureSkipVerify: true}}
	c, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	conn, ok := c.(*tls.Conn)
	if !ok {
		return "no TLS"
	}
	return conn.ConnectionState().PeerCertificates[0].Issuer.CommonName
}

// TestServingCertificatesRotate: what the API is served with follows its files, and the cluster's own clients are none
// the wiser.
func TestServingCertificatesRotate(t *testing.T) {
	dir := t.TempDir()
	cert := filepath.Join(dir, "tls.crt")
	key := filepath.Join(dir, "tls.key")
	put := func(from string, subject pki.Subject, cert, key string) {
		pair, err := authority(t, from).Server("server", subject)
		if err != nil {
			t.Fatal(err)
		}
		replace(t, cert, pair.CertPEM)
		replace(t, key, pair.KeyPEM)
	}
	subject := pki.Subject{Name: "api", DNS: []string{"api.example.com"}}
	put("first", subject, cert, key)
	put("sni", pki.Subject{Name: "more", DNS: []string{"more.example.org"}}, cert+"2", key+"2")
	access := controlPlaneOf(t, func(c *cluster.Config) {
		c.NoAgents = true
		c.API.Serving = options.Serving{CertFile: cert, KeyFile: key, SNI: []string{cert + "2," + key + "2:*.wild.org"}}
	})
	ctx := t.Context()
	for name, want := range map[string]string{
		"":                       "keelson-first",
		"api.example.com":        "keelson-first",
		"other.org":              "keelson-first",
		"A.wild.org":             "keelson-sni",
		"more.example.org":       "keelson-first",
		"keelson":                "keelson-ca",
		"kubernetes.default.svc": "keelson-ca",
	} {
		if got := shownTo(ctx, access, name); got != want {
			t.Errorf("%q is shown a certificate of %s, want %s", name, got, want)
		}
	}
	put("second", subject, cert, key)
	put("sni-2", subject, cert+"2", key+"2")
	waittest.Right(t, "after the rotation", func() string {
		if a, b := shownTo(ctx, access, "api.example.com"),
			shownTo(ctx, access, "b.wild.org"); a != "keelson-second" || b != "keelson-sni-2" {
			return a + " " + b
		}
		return ""
	})
	if _, err := kubernetes.NewForConfigOrDie(access).CoreV1().Namespaces().List(ctx,
		metav1.ListOptions{}); err != nil {
		t.Errorf("with the cluster's own kubeconfig: %v", err)
	}
}

// TestClientAuthoritiesRotate: clients and proxies of an authority that is no longer trusted are refused on the
// connections they have, those of the new one are let in, and aggregated servers are notified.
func TestClientAuthoritiesRotate(t *testing.T) {
	first := authority(t, "first")
	second := authority(t, "second")
	var clients, proxies string
	access := controlPlaneOf(t, func(c *cluster.Config) {
		c.NoAgents = true
		clients = write(t, "clients.pem", string(first.CertPEM()))
		proxies = write(t, "proxies.pem", string(first.CertPEM()))
		c.API.Authentication.ClientCAFile = clients
		c.API.Authentication.RequestHeader.CAFile = proxies
		c.API.Authentication.RequestHeader.UsernameHeaders = []string{"X-Remote-User"}
		c.API.Authentication.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	})
	ctx := t.Context()
	as := func(ca *pki.Authority, headers map[string]string) *kubernetes.Clientset {
		pair, err := ca.Client("ann", pki.Subject{Name: "ann", Groups: []string{"system:masters"}})
		if err != nil {
			t.Fatal(err)
		}
		c := rest.AnonymousClientConfig(access)
		c.CertData = pair.CertPEM
		c.KeyData = pair.KeyPEM
		c.QPS = -1
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { return asking{next, headers} })
		return kubernetes.NewForConfigOrDie(c)
	}
	list := func(c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		return err
	}
	passedOn := map[string]string{"X-Remote-User": "bob", "X-Remote-Group": "system:masters"}
	old := as(first, nil)
	oldProxy := as(first, passedOn)
	next := as(second, nil)
	nextProxy := as(second, passedOn)
	for what, c := range map[string]*kubernetes.Clientset{"client": old, "proxy": oldProxy} {
		if err := list(c); err != nil {
			t.Errorf("%s of the authority at first: %v", what, err)
		}
	}
	for what, c := range map[string]*kubernetes.Clientset{"client": next, "proxy": nextProxy} {
		if err := list(c); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s of no account: %v", what, err)
		}
	}
	replace(t, clients, []byte("nothing\n"))
	replace(t, clients, second.CertPEM())
	replace(t, proxies, second.CertPEM())
	waittest.Right(t, "after the rotation", func() string {
		for _, err := range []error{list(as(second, nil)), list(as(second, passedOn))} {
			if err != nil {
				return err.Error()
			}
		}
		for _, c := range []*kubernetes.Clientset{old, oldProxy} {
			if err := list(c); !apierrors.IsUnauthorized(err) {
				return "a client that was trusted is answered with " + errorText(err)
			}
		}
		told, err := kubernetes.NewForConfigOrDie(access).CoreV1().ConfigMaps("kube-system").Get(ctx,
			"extension-apiserver-authentication", metav1.GetOptions{})
		if err != nil || !strings.Contains(told.Data["client-ca-file"], strings.TrimSpace(string(second.CertPEM()))) {
			return "aggregated servers are not notified: " + errorText(err)
		}
		return ""
	})
}

func errorText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// asking adds headers to requests.
type asking struct {
	next    http.RoundTripper
	headers map[string]string
}

func (a asking) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for k, v := range a.headers {
		r.Header.Set(k, v)
	}
	return a.next.RoundTrip(r)
}

// TestEncryptionIsReadAgain: a key is added, then made the first; what is written from then on has it, and a file that
// is wrong is counted.
func TestEncryptionIsReadAgain(t *testing.T) {
	keys := func(names ...string) string {
		text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: " +
			"[secrets]\n  providers:\n  - secretbox:\n      keys:\n"
		for _, n := range names {
			text += "      - {name: " + n + ", secret: " + strings.Repeat(n, 43) + "=}\n"
		}
		return text
	}
	var path string
	access := controlPlaneOf(t, func(c *cluster.Config) {
		c.NoAgents = true
		path = write(t, "encryption.yaml", keys("A"))
		c.API.Encryption.ConfigFile = path
		c.API.Encryption.Reload = true
	})
	ctx := t.Context()
	clientset := kubernetes.NewForConfigOrDie(access)
	secrets := clientset.CoreV1().Secrets("default")
	for _, name := range []string{"old", "new"} {
		if _, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reloads := func(status string, want string) {
		t.Helper()
		waittest.Right(t, "reloads", func() string {
			b, err := clientset.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
			if err != nil {
				return err.Error()
			}
			for line := range strings.SplitSeq(string(b), "\n") {
				if strings.HasPrefix(line, "apiserver_encryption_config_controller_automatic_reloads_total{") &&
					strings.Contains(line, `status="`+status+`"`) &&
					strings.HasSuffix(line, " "+want) {
					return ""
				}
			}
			return "not " + want + " with status " + status
		})
	}
	replace(t, path, []byte(keys("A", "B")))
	reloads("success", "1")
	replace(t, path, []byte("wrong\n"))
	reloads("failure", "1")
	replace(t, path, []byte(keys("B", "A")))
	reloads("success", "2")
	s, err := secrets.Get(ctx, "new", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := s.ResourceVersion
	if s, err = secrets.Update(ctx, s, metav1.UpdateOptions{}); err != nil || s.ResourceVersion == before {
		t.Errorf("a secret of the old key was not stored again: %v", err)
	}
	before = s.ResourceVersion
	if s, err = secrets.Update(ctx, s, metav1.UpdateOptions{}); err != nil || s.ResourceVersion != before {
		t.Errorf("a secret of the new key was stored again: %v", err)
	}
	if _, err := secrets.Get(ctx, "old", metav1.GetOptions{}); err != nil {
		t.Errorf("a secret of the old key: %v", err)
	}
}
