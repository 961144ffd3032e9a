// SPDX-License-Identifier: Apache-2.0

package options

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"keelson/pki"
)

// TestServing: one row for a form that is refused.
func TestServing(t *testing.T) {
	for _, tt := range []struct {
		o    Serving
		want string
	}{
		{Serving{CertFile: "a"}, "must be given together"},
		{Serving{KeyFile: "a"}, "must be given together"},
		{Serving{SNI: []string{"a"}}, `"a" is not of the form`},
		{Serving{SNI: []string{"a,b:"}}, `"a,b:" is not of the form`},
		{Serving{SNI: []string{"a,b,c"}}, `"a,b,c" is not of the form`},
	} {
		if _, err := tt.o.parse(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %s", tt.o, err, tt.want)
		}
	}
}

// TestServingKeepsTheOld: a file that is wrong changes nothing.
func TestServingKeepsTheOld(t *testing.T) {
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Server("server", pki.Subject{Name: "api", DNS: []string{"api.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	own := func() *tls.Certificate { return &cert }
	dir := t.TempDir()
	serving := Serving{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key")}
	put := func(path string, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(serving.CertFile, pair.CertPEM)
	put(serving.KeyFile, pair.KeyPEM)
	s, err := NewCertificates(own, serving)
	if err != nil {
		t.Fatal(err)
	}
	hello := &tls.ClientHelloInfo{ServerName: "api.example.com."}
	before, _ := s.certificate(hello)
	put(serving.CertFile, []byte("junk"))
	if err := s.load(); err == nil || !strings.Contains(err.Error(), serving.CertFile) {
		t.Errorf("a file that is wrong: %v", err)
	}
	if after, _ := s.certificate(hello); after != before {
		t.Error("a file that is wrong took the certificate away")
	}
	if _, err := NewCertificates(own, serving); err == nil {
		t.Error("a server starts with a file that is wrong")
	}
}
