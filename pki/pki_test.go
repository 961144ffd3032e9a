// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func server() Subject {
	return Subject{
		Name: "kube-apiserver",
		DNS:  []string{"localhost", "kubernetes.default.svc"},
		IPs: []net.IP{
			net.IPv4(127, 0, 0, 1),
		},
	}
}

func TestReopenKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	authority, err := Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Server("apiserver", server())
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	q, err := again.Server("apiserver", server())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(authority.CertPEM(), again.CertPEM()) || !bytes.Equal(pair.CertPEM, q.CertPEM) {
		t.Error("reopening made new certificates, want the kept ones")
	}
	leaf, err := q.TLS()
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "kubernetes.default.svc"} {
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: again.Pool()}); err != nil {
			t.Errorf("verify for %s: %v", host, err)
		}
	}
}

func TestPrivateFilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	a, err := Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Client("admin", Subject{Name: "admin", Groups: []string{"system:masters"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := ServiceAccountKey(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.key", "admin.key", "sa.key"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o, want 600", name, st.Mode().Perm())
		}
	}
	if st, _ := os.Stat(dir); st.Mode().Perm() != 0o700 {
		t.Errorf("directory has mode %o, want 700", st.Mode().Perm())
	}
}

func TestLeafIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	authority, err := open(dir, "ca", leafLife, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	first, err := authority.Server("apiserver", server())
	if err != nil {
		t.Fatal(err)
	}
	wider := server()
	wider.IPs = append(wider.IPs, net.IPv4(10, 0, 0, 7))
	second, err := authority.Server("apiserver", wider)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first.CertPEM, second.CertPEM) {
		t.Error("a certificate that lacks a wanted address was kept")
	}
	now = now.Add(leafLife * 3 / 4)
	third, err := authority.Server("apiserver", wider)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(second.CertPEM, third.CertPEM) {
		t.Error("a certificate near its end was kept")
	}
}

func TestHalfPresentAuthorityIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	key, _ := os.ReadFile(filepath.Join(dir, "ca.key"))
	if _, err := Open(dir, "ca"); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("Open() = %v, want an error naming ca.crt", err)
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "ca.key")); !bytes.Equal(key, after) {
		t.Error("the key was overwritten")
	}
}

// TestAuthorityWithoutKey: one whose making was interrupted is made; somebody else's is not replaced, and a leaf is not
// taken for one.
func TestAuthorityWithoutKey(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	a, err := Open(dir, "ca")
	if err != nil {
		t.Fatalf("an interrupted one: %v", err)
	}
	leaf, err := a.Server("apiserver", server())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other.crt"), leaf.CertPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "other"); err == nil || !strings.Contains(err.Error(), "other.key is not") {
		t.Errorf("a certificate alone: Open() = %v, want that other.key is not there", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other.key"), leaf.KeyPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "other"); err == nil ||
		!strings.Contains(err.Error(), "other.crt is the certificate of \"kube-apiserver\"") {
		t.Errorf("a leaf: Open() = %v, want that it is not an authority's", err)
	}
}

// TestHalfALeafIsMadeAnew: of a leaf either file may be missing.
func TestHalfALeafIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	authority, err := Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"apiserver.key", "apiserver.crt"} {
		if _, err := authority.Server("apiserver", server()); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
		p, err := authority.Server("apiserver", server())
		if err != nil {
			t.Errorf("without %s: %v", file, err)
			continue
		}
		if _, err := p.TLS(); err != nil {
			t.Errorf("without %s: %v", file, err)
		}
	}
}

func TestServiceAccountKeyIsKept(t *testing.T) {
	dir := t.TempDir()
	a, err := ServiceAccountKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ServiceAccountKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	ka, _ := encodeKey(a)
	kb, _ := encodeKey(b)
	if !bytes.Equal(ka, kb) {
		t.Error("the second call gave another key")
	}
	if err := os.WriteFile(filepath.Join(dir, "sa.key"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ServiceAccountKey(dir); err == nil {
		t.Error("a garbage key file was accepted")
	}
}

func TestMergeKubeconfigKeepsTheRest(t *testing.T) {
	a, err := Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Client("admin", Subject{Name: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	other, _ := Kubeconfig("other", "https://127.0.0.1:1", "", a.CertPEM(), p)
	mine, _ := Kubeconfig("keelson", "https://127.0.0.1:6443", "", a.CertPEM(), p)
	path := filepath.Join(t.TempDir(), ".kube", "config")
	for _, b := range [][]byte{other, mine, mine} {
		if err := MergeKubeconfig(path, b); err != nil {
			t.Fatal(err)
		}
	}
	got, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Contexts) != 2 || got.CurrentContext != "keelson" ||
		got.Clusters["other"].Server != "https://127.0.0.1:1" {
		t.Errorf("merged: contexts %v, current %q", got.Contexts, got.CurrentContext)
	}
	if err := os.WriteFile(path, []byte("{not a kubeconfig"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MergeKubeconfig(path, mine); err == nil {
		t.Error("merged into garbage")
	}
	if b, _ := os.ReadFile(path); string(b) != "{not a kubeconfig" {
		t.Errorf("garbage file was changed to %q", b)
	}
}

// FuzzParseRequest: a request is read or refused, and of one that is read the authority makes a certificate that it
// signed.
func FuzzParseRequest(f *testing.F) {
	authority, err := Open(f.TempDir(), "ca")
	if err != nil {
		f.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		DNSNames: []string{
			"a.example.com",
		},
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
	}, key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der[:len(der)/2]}))
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: der}))
	f.Fuzz(func(t *testing.T, b []byte) {
		req, err := ParseRequest(b)
		if err != nil {
			return
		}
		if _, err := authority.Sign(req, x509.KeyUsageDigitalSignature, nil, time.Hour); err != nil {
			t.Errorf("%q: read, but: %v", b, err)
		}
	})
}

func TestRefreshKubeconfigKeepsWhatItsOwnerChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	refresh := func(server string) {
		t.Helper()
		b, err := Kubeconfig("keelson", server, "", []byte("ca"), Pair{CertPEM: []byte("cert"), KeyPEM: []byte("key")})
		if err != nil {
			t.Fatal(err)
		}
		if err := RefreshKubeconfig(path, b); err != nil {
			t.Fatal(err)
		}
	}
	refresh("https://127.0.0.1:1")
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c.Contexts["keelson"].Namespace = "team"
	c.Contexts["other"] = c.Contexts["keelson"].DeepCopy()
	c.CurrentContext = "other"
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		t.Fatal(err)
	}
	refresh("https://127.0.0.1:2")
	got, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Contexts["keelson"].Namespace != "team" || got.CurrentContext != "other" ||
		got.Clusters["keelson"].Server != "https://127.0.0.1:2" {
		t.Errorf("contexts %v, current %q, server %q: want the owner's contexts and the new server", got.Contexts,
			got.CurrentContext, got.Clusters["keelson"].Server)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	refresh("https://127.0.0.1:2")
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) ||
		!after.ModTime().Equal(before.ModTime()) {
		t.Errorf("written again though nothing changed (%v)", err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	refresh("https://127.0.0.1:3")
	if got, err = clientcmd.LoadFromFile(path); err != nil || got.Clusters["keelson"].Server != "https://127.0.0.1:3" {
		t.Errorf("a damaged file was not replaced: %v", err)
	}
}
