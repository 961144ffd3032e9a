// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Authority is a CA, stored in a directory or only in memory. Refresh takes over what the directory has now. It is safe
// for concurrent use.
type Authority struct {
	dir  string
	name string
	now  func() time.Time
	life time.Duration // of the certificates that it issues

	state   atomic.Pointer[authorityState]
	mu      sync.Mutex
	changed chan struct{} // closed when the state changes
}

// authorityState is a CA's certificates and its key. It is not modified.
type authorityState struct {
	cert *x509.Certificate // of key
	key  crypto.Signer
	// pem and roots are all certificates that are trusted.
	pem   []byte
	roots []*x509.Certificate
	// cross is the certificate of key from the previous key, nil unless the key is being replaced.
	cross   []byte
	retired []byte
}

func newAuthority(dir, name string, life time.Duration, now func() time.Time, state *authorityState) *Authority {
	a := &Authority{
		dir:     dir,
		name:    name,
		now:     now,
		life:    life,
		changed: make(chan struct{}),
	}
	a.state.Store(state)
	return a
}

// readState reads a CA from its directory.
func readState(dir, name string) (*authorityState, error) {
	pair, err := readPair(dir, name)
	if err != nil {
		return nil, err
	}
	state, err := parseState(pair)
	if err != nil {
		return nil, err
	}
	for file, into := range map[string]*[]byte{"-cross.pem": &state.cross, "-retired.pem": &state.retired} {
		*into, err = os.ReadFile(filepath.Join(dir, name+file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return state, nil
}

// parseState finds the certificate of the key among those of p.
func parseState(p Pair) (*authorityState, error) {
	all, err := Certificates(p.CertPEM)
	if err != nil {
		return nil, err
	}
	state := &authorityState{pem: p.CertPEM, roots: all}
	for _, c := range all {
		var other error
		state.cert, state.key, other = parsePair(Pair{CertPEM: encodeCertificate(c.Raw), KeyPEM: p.KeyPEM})
		if other == nil {
			return state, nil
		}
		if err == nil {
			err = other // of the first one, which is the usual one
		}
	}
	return nil, err
}

// with are the trusted certificates that fulfil a condition, those of the key that signs first.
func (s *authorityState) with(wanted func(*x509.Certificate) bool) []byte {
	var out []byte
	for _, signs := range []bool{true, false} {
		for _, c := range s.roots {
			if samePublic(c.PublicKey, s.cert.PublicKey) == signs && wanted(c) {
				out = append(out, encodeCertificate(c.Raw)...)
			}
		}
	}
	return out
}

// others are the certificates of other keys than the one that signs.
func (s *authorityState) others() []*x509.Certificate {
	var out []*x509.Certificate
	for _, c := range s.roots {
		if !samePublic(c.PublicKey, s.cert.PublicKey) {
			out = append(out, c)
		}
	}
	return out
}

// chain is what follows a certificate that this key has signed, for clients that do not know the key yet.
func (s *authorityState) chain() []byte {
	certs, err := Certificates(s.cross)
	if err != nil || !samePublic(certs[0].PublicKey, s.cert.PublicKey) {
		return nil // the old key signs
	}
	return s.cross
}

// Name is the name under which it is stored.
func (a *Authority) Name() string { return a.name }

// Refresh reads the CA again, and reports whether that changed it. On an error the previous one stays.
func (a *Authority) Refresh() (bool, error) {
	if a.dir == "" {
		return false, nil
	}
	next, err := readState(a.dir, a.name)
	if err != nil {
		return false, fmt.Errorf("read certificate authority %s again: %w", a.name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	had := a.state.Load()
	if bytes.Equal(next.pem, had.pem) && next.cert.Equal(had.cert) && bytes.Equal(next.cross, had.cross) &&
		bytes.Equal(next.retired, had.retired) {
		return false, nil
	}
	a.state.Store(next)
	close(a.changed)
	a.changed = make(chan struct{})
	return true, nil
}

// Bundle is CertPEM, and a channel that is closed when it changes.
func (a *Authority) Bundle() (pem []byte, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.Load().pem, a.changed
}

// Info describes the CA.
func (a *Authority) Info() Info {
	path := ""
	if a.dir != "" {
		path = filepath.Join(a.dir, a.name+".crt")
	}
	return Describe(a.name, path, a.state.Load().cert, ByCommand)
}

// CertPEM has all certificates by which what the CA has signed is trusted.
func (a *Authority) CertPEM() []byte { return a.state.Load().pem }

// CrossPEM is the certificate of a new key from the old one, while both are trusted; nil otherwise.
func (a *Authority) CrossPEM() []byte { return a.state.Load().cross }

// Others are trusted certificates of another key than the one that signs, while it is replaced.
func (a *Authority) Others() []*x509.Certificate {
	return a.state.Load().others()
}

// RetiredPEM are the certificates that are no longer trusted.
func (a *Authority) RetiredPEM() []byte { return a.state.Load().retired }

// Signer returns the CA's certificate and key, for the Certificates API.
func (a *Authority) Signer() (*x509.Certificate, crypto.Signer) {
	state := a.state.Load()
	return state.cert, state.key
}

// Pool contains the certificates of CertPEM.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range a.state.Load().roots {
		p.AddCert(c)
	}
	return p
}

// Follows reports whether everything that trusts known may trust next: each key in next is in known, or has a
// certificate in cross from such a key.
func Follows(known, next, cross []byte) bool {
	have, err := Certificates(known)
	if err != nil {
		return false
	}
	news, err := Certificates(next)
	if err != nil {
		return false
	}
	links, _ := Certificates(cross) // none: only known keys
	return !slices.ContainsFunc(news, func(c *x509.Certificate) bool {
		return !slices.ContainsFunc(have, func(h *x509.Certificate) bool { return vouches(h, c, links) })
	})
}

// ShareAuthority reports whether two bundles have a key in common.
func ShareAuthority(a, b []byte) bool {
	some, _ := Certificates(a) // an unreadable bundle has no key
	others, _ := Certificates(b)
	return slices.ContainsFunc(some, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(others, func(o *x509.Certificate) bool { return vouches(o, c, nil) })
	})
}

// vouches reports whether h has the key of c, or has signed a certificate for that in links.
func vouches(h, c *x509.Certificate, links []*x509.Certificate) bool {
	if bytes.Equal(h.RawSubjectPublicKeyInfo, c.RawSubjectPublicKeyInfo) {
		return true
	}
	return slices.ContainsFunc(links, func(l *x509.Certificate) bool {
		return l.IsCA && bytes.Equal(l.RawSubjectPublicKeyInfo, c.RawSubjectPublicKeyInfo) &&
			l.CheckSignatureFrom(h) == nil
	})
}
