// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Leaf is a certificate that an Authority issued, stored as NAME.crt and NAME.key. Refresh replaces it before it
// expires; TLS configurations get the current one for each handshake. It is safe for concurrent use.
type Leaf struct {
	by      *Authority
	name    string
	subject Subject
	usage   []x509.ExtKeyUsage

	mu      sync.Mutex // serializes Refresh
	current atomic.Pointer[issued]
}

// issued is a pair in both forms. It is not modified.
type issued struct {
	pair Pair
	cert *tls.Certificate
}

// ServerLeaf opens the server certificate stored as name. It issues a new one if it is missing, due for renewal, signed
// by another CA, or without one of the wanted names.
func (a *Authority) ServerLeaf(name string, s Subject) (*Leaf, error) {
	return a.openLeaf(name, s, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

// ClientLeaf opens the client certificate stored as name, under the same rules.
func (a *Authority) ClientLeaf(name string, s Subject) (*Leaf, error) {
	return a.openLeaf(name, s, x509.ExtKeyUsageClientAuth)
}

// Server returns the current server certificate stored as name, by the rules of ServerLeaf.
func (a *Authority) Server(name string, s Subject) (Pair, error) {
	return pairOf(a.ServerLeaf(name, s))
}

// Client returns the current client certificate stored as name, by the rules of ClientLeaf.
func (a *Authority) Client(name string, s Subject) (Pair, error) {
	return pairOf(a.ClientLeaf(name, s))
}

func pairOf(l *Leaf, err error) (Pair, error) {
	if err != nil {
		return Pair{}, err
	}
	return l.Pair(), nil
}

func (a *Authority) openLeaf(name string, s Subject, usage ...x509.ExtKeyUsage) (*Leaf, error) {
	l := &Leaf{
		by:      a,
		name:    name,
		subject: s,
		usage:   usage,
	}
	_, err := l.Refresh()
	return l, err
}

// Name is the name under which it is stored.
func (l *Leaf) Name() string { return l.name }

// file is where the certificate is stored; empty: nowhere.
func (l *Leaf) file() string {
	if l.by.dir == "" {
		return ""
	}
	return filepath.Join(l.by.dir, l.name+".crt")
}

// Pair is the current certificate.
func (l *Leaf) Pair() Pair { return l.current.Load().pair }

// Certificate is the current certificate, which must not be modified.
func (l *Leaf) Certificate() *tls.Certificate { return l.current.Load().cert }

// Serve is a tls.Config.GetCertificate.
func (l *Leaf) Serve(*tls.ClientHelloInfo) (*tls.Certificate, error) { return l.Certificate(), nil }

// Show is a tls.Config.GetClientCertificate.
func (l *Leaf) Show(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return l.Certificate(), nil
}

// Due is when Refresh issues the next one. Where that could not live longer than the current one, because the CA
// expires, it is a time long after that.
func (l *Leaf) Due() time.Time {
	c := l.Certificate().Leaf
	if !c.NotAfter.Before(l.by.state.Load().cert.NotAfter) {
		return l.by.now().Add(caLife)
	}
	return renewAt(c)
}

// Refresh takes over what another process has stored, and issues a new certificate if the current one is due. changed
// reports whether there is another one than before, even with an error: it could not be stored then.
func (l *Leaf) Refresh() (changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := l.current.Load()
	if ok, err := l.take(); ok || err != nil {
		return ok && l.current.Load() != had, err
	}
	err = locked(l.by.dir, func() error {
		if ok, err := l.take(); ok || err != nil { // another process was faster
			return err
		}
		next := had
		if next == nil || !l.by.fits(next.cert.Leaf, l.subject) { // else it was removed or could not be stored
			if next, err = l.issue(); err != nil {
				return err
			}
		}
		l.current.Store(next)
		return writePair(l.by.dir, l.name, next.pair)
	})
	return l.current.Load() != had, err
}

// take makes the stored certificate the current one. It reports whether there is one that fits.
func (l *Leaf) take() (bool, error) {
	have := l.current.Load()
	if l.by.dir == "" { // nothing is stored
		return have != nil && l.by.fits(have.cert.Leaf, l.subject), nil
	}
	pair, err := readPair(l.by.dir, l.name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errHalf):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read certificate %s: %w", l.name, err)
	}
	cert, err := pair.TLS()
	if err != nil || !l.by.fits(cert.Leaf, l.subject) {
		return false, nil //nolint:nilerr // it is replaced
	}
	if have == nil || !have.cert.Leaf.Equal(cert.Leaf) {
		l.current.Store(&issued{pair, &cert})
	}
	return true, nil
}

func (l *Leaf) issue() (*issued, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	pair, err := l.by.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: l.subject.Name, Organization: l.subject.Groups},
		ExtKeyUsage: l.usage,
		DNSNames:    l.subject.DNS,
		IPAddresses: l.subject.IPs,
	}, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate %s: %w", l.name, err)
	}
	cert, err := pair.TLS()
	if err != nil {
		return nil, fmt.Errorf("sign certificate %s: %w", l.name, err)
	}
	return &issued{pair, &cert}, nil
}

// issue signs a leaf certificate with the names and usages of t, which lives as long as the CA's do and not longer than
// the CA itself.
func (a *Authority) issue(t *x509.Certificate, key *ecdsa.PrivateKey) (Pair, error) {
	now := a.now()
	by := a.state.Load()
	if !now.Before(by.cert.NotAfter) {
		return Pair{}, fmt.Errorf("the certificate authority %q has expired at %s", by.cert.Subject.CommonName,
			by.cert.NotAfter.Format(time.RFC3339))
	}
	t.NotBefore = validFrom(now, a.life)
	t.NotAfter = now.Add(a.life)
	if t.NotAfter.After(by.cert.NotAfter) {
		t.NotAfter = by.cert.NotAfter
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	p, err := sign(t, by.cert, key, by.key, now)
	p.CertPEM = append(p.CertPEM, by.chain()...)
	return p, err
}

// fits reports whether a certificate needs no renewal and is one for subject.
func (a *Authority) fits(cert *x509.Certificate, subject Subject) bool {
	by := a.state.Load()
	if cert.CheckSignatureFrom(by.cert) != nil {
		return false
	}
	now := a.now()
	if now.Before(cert.NotBefore) || now.After(renewAt(cert)) && cert.NotAfter.Before(by.cert.NotAfter) {
		return false
	}
	if cert.Subject.CommonName != subject.Name || !slices.Equal(cert.Subject.Organization, subject.Groups) {
		return false
	}
	for _, d := range subject.DNS {
		if cert.VerifyHostname(d) != nil {
			return false
		}
	}
	for _, ip := range subject.IPs {
		if cert.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}

// locked calls do while no other process issues certificates in dir. A process that ends gives the lock back.
func locked(dir string, do func() error) error {
	if dir == "" {
		return do()
	}
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("lock the certificates: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock the certificates in %s: %w", dir, err)
	}
	return do()
}
