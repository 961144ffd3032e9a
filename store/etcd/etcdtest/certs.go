// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certs makes an authority and two certificates of it: a member's and a client's.
func Certs(t testing.TB) (member, client Files) {
	t.Helper()
	dir := t.TempDir()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "ca"},
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	write := func(name string, c *x509.Certificate, key *ecdsa.PrivateKey) Files {
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		files := Files{
			CA:   filepath.Join(dir, "ca.crt"),
			Cert: filepath.Join(dir, name+".crt"),
			Key: filepath.Join(dir,
				name+".key"),
		}
		for path, b := range map[string]*pem.Block{
			files.Cert: {Type: "CERTIFICATE", Bytes: der},
			files.Key:  {Type: "EC PRIVATE KEY", Bytes: raw},
		} {
			if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return files
	}
	write("ca", ca, caKey)
	leaf := func(n int64, name string, usage ...x509.ExtKeyUsage) Files {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return write(name, &x509.Certificate{
			SerialNumber: big.NewInt(n),
			Subject:      pkix.Name{CommonName: name},
			NotAfter:     time.Now().Add(time.Hour),
			KeyUsage:     x509.KeyUsageDigitalSignature,
			ExtKeyUsage:  usage,
			IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		}, key)
	}
	return leaf(2, "member", x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth),
		leaf(3, "client", x509.ExtKeyUsageClientAuth)
}
