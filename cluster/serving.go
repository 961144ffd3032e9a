// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// ServingOptions are kube-apiserver's flags about the certificates that the API is served with.
type ServingOptions struct {
	// CertFile and KeyFile are what is shown to who asks for no other name; empty: the cluster's own.
	CertFile, KeyFile string
	// SNI are further ones: "CERT,KEY", or "CERT,KEY:NAME,NAME" where they are for other names than they hold. "*.example.com" is any
	// name one level below.
	SNI []string
}

// named is one of SNI.
type named struct {
	cert, key string
	names     []string // none: those of the certificate
}

func (o ServingOptions) parse() ([]named, error) {
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("--tls-cert-file and --tls-private-key-file must be given together")
	}
	var out []named
	for _, text := range o.SNI {
		files, names, more := strings.Cut(text, ":")
		cert, key, ok := strings.Cut(files, ",")
		if !ok || cert == "" || key == "" || strings.Contains(key, ",") || more && names == "" {
			return nil, fmt.Errorf("--tls-sni-cert-key %q is not of the form CERT,KEY or CERT,KEY:NAME,NAME", text)
		}
		n := named{cert: cert, key: key}
		if more {
			n.names = strings.Split(names, ",")
		}
		out = append(out, n)
	}
	return out, nil
}

// serving is what the API shows and whom it lets show a certificate. It changes while the server runs; connections that are there
// stay as they are.
type serving struct {
	own    tls.Certificate // answers for the cluster's own names, whatever else is shown
	opts   ServingOptions
	shown  atomic.Pointer[shown]
	config atomic.Pointer[tls.Config] // what new connections get, with the authorities that clients are told of

	mu      sync.Mutex        // one change at a time
	trusted map[string][]byte // PEM of the authorities of clients, by whose they are
}

// shown are certificates by name.
type shown struct {
	otherwise *tls.Certificate
	exact     map[string]*tls.Certificate
}

func newServing(own tls.Certificate, opts ServingOptions) (*serving, error) {
	s := &serving{own: own, opts: opts, trusted: map[string][]byte{}}
	return s, s.load()
}

// load reads all certificates; when one is wrong, those before stay.
func (s *serving) load() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.opts.parse()
	if err != nil {
		return err
	}
	next := &shown{otherwise: &s.own, exact: map[string]*tls.Certificate{}}
	if s.opts.CertFile != "" {
		if next.otherwise, err = pairOf(s.opts.CertFile, s.opts.KeyFile); err != nil {
			return err
		}
		if err := errors.Join(next.add(&s.own, nil), next.add(next.otherwise, nil)); err != nil {
			return err
		}
	}
	var explicit []func() error
	for _, n := range list {
		c, err := pairOf(n.cert, n.key)
		if err != nil {
			return err
		}
		if len(n.names) > 0 {
			explicit = append(explicit, func() error { return next.add(c, n.names) })
		} else if err := next.add(c, nil); err != nil {
			return err
		}
	}
	for _, add := range explicit { // what is said goes before what certificates hold
		if err := add(); err != nil {
			return err
		}
	}
	s.shown.Store(next)
	return nil
}

func pairOf(cert, key string) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("serving certificate %s with key %s: %w", cert, key, err)
	}
	return &c, nil
}

// add has c answer for names, or for those it holds.
func (s *shown) add(c *tls.Certificate, names []string) error {
	if names == nil {
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			return fmt.Errorf("serving certificate: %w", err)
		}
		names = leaf.DNSNames
		if net.ParseIP(leaf.Subject.CommonName) == nil && leaf.Subject.CommonName != "" && len(names) == 0 {
			names = []string{leaf.Subject.CommonName}
		}
	}
	for _, n := range names {
		s.exact[strings.ToLower(n)] = c
	}
	return nil
}

// certificate chooses what a client is shown.
func (s *serving) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	now := s.shown.Load()
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if c, ok := now.exact[name]; ok {
		return c, nil
	}
	if _, domain, ok := strings.Cut(name, "."); ok {
		if c, ok := now.exact["*."+domain]; ok {
			return c, nil
		}
	}
	return now.otherwise, nil
}

// tell names the authorities of clients to new connections; whose says which ones change. Clients choose their certificate by them.
func (s *serving) tell(whose string, pem []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trusted[whose] = pem
	pool := x509.NewCertPool()
	for _, pem := range s.trusted {
		pool.AppendCertsFromPEM(pem)
	}
	s.config.Store(s.tls(pool))
}

// tls asks for, but does not require, client certificates: tokens are another way in. The authenticator verifies them.
func (s *serving) tls(clients *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: s.certificate,
		ClientAuth:     tls.RequestClientCert,
		ClientCAs:      clients,
		NextProtos:     []string{"h2", "http/1.1"},
	}
}

// server is the configuration of the listener.
func (s *serving) server() *tls.Config {
	c := s.tls(nil)
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.config.Load(), nil }
	return c
}

// certificatesShown reads the certificates that the API is served with again when one of their files changes.
func (l *liveFiles) certificatesShown(s *serving) error {
	list, err := s.opts.parse()
	if err != nil {
		return err
	}
	if s.opts.CertFile != "" {
		list = append(list, named{cert: s.opts.CertFile, key: s.opts.KeyFile})
	}
	for _, n := range list {
		for _, path := range []string{n.cert, n.key} {
			b, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("serving certificate: %w", err)
			}
			l.again(path, b, func(context.Context, []byte) error { return s.load() })
		}
	}
	if len(list) == 0 {
		return nil
	}
	return s.load() // it counts what the files hold now
}

// authoritiesOf are the certificates in a file, which must hold one at least.
func authoritiesOf(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("it holds no certificate")
	}
	return pool, nil
}

func readAuthorities(path, whose string) ([]byte, error) {
	pem, err := os.ReadFile(path)
	if err == nil {
		_, err = authoritiesOf(pem)
	}
	if err != nil {
		return nil, fmt.Errorf("authorities of %s: %s: %w", whose, path, err)
	}
	return pem, nil
}
