// SPDX-License-Identifier: Apache-2.0

// Package pki is the cluster's certificate authority: it creates and stores CAs, server and client certificates,
// service-account keys and kubeconfigs in one directory. cluster calls it at start, and controllers sign certificate
// requests with it. It never uses the network.
//
// Invariants:
//  1. Every private key and kubeconfig is written 0600, atomically; the directory is 0700.
//  2. Opening a directory that has everything writes nothing.
//  3. A leaf certificate that is missing or not valid is created again; a CA or a token key that cannot be read is an
//     error.
//  4. A Leaf is replaced before it expires (renewAt), when it is opened and by Refresh.
//  5. Of several processes with one directory only one issues at a time; the others take what it wrote.
package pki

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
)

// Pair is a certificate with its key, both in PEM.
type Pair struct {
	CertPEM, KeyPEM []byte
}

// TLS returns the pair as a tls.Certificate.
func (p Pair) TLS() (tls.Certificate, error) { return tls.X509KeyPair(p.CertPEM, p.KeyPEM) }

// Subject is the identity in a certificate.
type Subject struct {
	Name   string   // common name: the user or server
	Groups []string // organizations
	// DNS and IPs are set for servers.
	DNS []string
	IPs []net.IP
}

// Open opens the CA name ("ca") in dir. It creates the CA if there is none, or if its creation was interrupted. Any
// other incomplete CA, or an unreadable one, is an error: nothing is overwritten. With dir "" the CA is only in memory.
func Open(dir, name string) (*Authority, error) { return OpenFor(dir, name, leafLife) }

// OpenFor is Open of a CA whose certificates live so long.
func OpenFor(dir, name string, life time.Duration) (*Authority, error) {
	return open(dir, name, life, time.Now)
}

func open(dir, name string, life time.Duration, now func() time.Time) (*Authority, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make certificate directory: %w", err)
		}
	}
	state, err := readState(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = interrupted(dir, name); err == nil {
			state, err = makeCA(dir, name, now())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open certificate authority %s in %s: %w", name, dir, err)
	}
	if !state.cert.IsCA {
		return nil, fmt.Errorf("open certificate authority %s in %s: %s.crt is the certificate of %q, not of an "+
			"authority", name, dir, name, state.cert.Subject.CommonName)
	}
	return newAuthority(dir, name, cmp.Or(life, leafLife), now, state), nil
}

// interrupted returns nil if a certificate without a key may be replaced: because there is none, or because writePair
// was interrupted.
func interrupted(dir, name string) error {
	if dir == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if block, _ := pem.Decode(b); block != nil {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.Subject.CommonName == caName(name) {
			return nil
		}
	}
	return fmt.Errorf("%s.crt is there but %s.key is not", name, name)
}

func caName(name string) string { return "keelson-" + name }

// Fingerprint identifies a public key as kubeadm does: "sha256:" and the hash of its SubjectPublicKeyInfo.
func Fingerprint(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("fingerprint of a key: %w", err)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(der)), nil
}

func makeCA(dir, name string, now time.Time) (*authorityState, error) {
	cert := authorityTemplate(pkix.Name{CommonName: caName(name)})
	cert.NotAfter = now.Add(caLife)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	p, err := sign(cert, cert, key, key, now)
	if err != nil {
		return nil, err
	}
	if err := writePair(dir, name, p); err != nil {
		return nil, err
	}
	return parseState(p)
}

func sign(t, parent *x509.Certificate, key, by crypto.Signer, now time.Time) (Pair, error) {
	var err error
	if t.SerialNumber, err = serial(now); err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), by)
	if err != nil {
		return Pair{}, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{CertPEM: encodeCertificate(der), KeyPEM: keyPEM}, nil
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}), nil
}

func parsePair(p Pair) (*x509.Certificate, crypto.Signer, error) {
	t, err := p.TLS()
	if err != nil {
		return nil, nil, err
	}
	key, ok := t.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("private key of type %T cannot sign", t.PrivateKey)
	}
	return t.Leaf, key, nil
}

// errHalf: there is a key without a certificate.
var errHalf = errors.New("half of the pair is missing")

func readPair(dir, name string) (Pair, error) {
	if dir == "" {
		return Pair{}, fs.ErrNotExist
	}
	key, err := os.ReadFile(filepath.Join(dir, name+".key"))
	if err != nil {
		return Pair{}, err
	}
	cert, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if errors.Is(err, fs.ErrNotExist) {
		return Pair{}, fmt.Errorf("%s.key is there but %s.crt is not: %w", name, name, errHalf)
	}
	return Pair{CertPEM: cert, KeyPEM: key}, err
}

// writePair writes the certificate first: a key without a certificate is then a sign of manipulation, not of a crash.
func writePair(dir, name string, p Pair) error {
	if dir == "" {
		return nil
	}
	if err := WriteFile(filepath.Join(dir, name+".crt"), p.CertPEM, 0o644); err != nil {
		return err
	}
	return WriteFile(filepath.Join(dir, name+".key"), p.KeyPEM, 0o600)
}

// WriteFile replaces path atomically: a reader sees the old file or the new one.
func WriteFile(path string, b []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // it does not exist after a successful rename
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
