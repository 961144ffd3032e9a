// SPDX-License-Identifier: Apache-2.0

package options

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
	"time"

	"keelson/apiserver/configreload"
	"keelson/pki"
)

// Certificates holds the API's serving certificates and the client CAs that it announces. They can change while the
// server runs; existing connections keep theirs.
type Certificates struct {
	clusterCert certificate // for the cluster's own names, in any case
	opts        Serving
	certs       atomic.Pointer[certificateSet]
	config      atomic.Pointer[tls.Config] // for new connections, with the announced client CAs

	mu      sync.Mutex        // serializes changes
	trusted map[string][]byte // client CAs in PEM, by their source
}

// certificate returns what is current.
type certificate func() *tls.Certificate

// certificateSet holds certificates by name.
type certificateSet struct {
	defaultCert certificate
	exact       map[string]certificate
}

// NewCertificates loads the certificates of opts. own returns the cluster's current one; its names do not change.
func NewCertificates(own func() *tls.Certificate, opts Serving) (*Certificates, error) {
	s := &Certificates{clusterCert: own, opts: opts, trusted: map[string][]byte{}}
	return s, s.load()
}

// UsesClusterCert reports whether the default certificate is the cluster's own.
func (s *Certificates) UsesClusterCert() bool { return s.opts.CertFile == "" }

// load loads all certificates; on an error the previous ones stay.
func (s *Certificates) load() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.opts.parse()
	if err != nil {
		return err
	}
	next := &certificateSet{defaultCert: s.clusterCert, exact: map[string]certificate{}}
	if s.opts.CertFile != "" {
		if next.defaultCert, err = readServing(s.opts.CertFile, s.opts.KeyFile); err != nil {
			return err
		}
		if err := errors.Join(next.add(s.clusterCert, nil), next.add(next.defaultCert, nil)); err != nil {
			return err
		}
	}
	var explicit []func() error
	for _, n := range list {
		c, err := readServing(n.cert, n.key)
		if err != nil {
			return err
		}
		if len(n.names) > 0 {
			explicit = append(explicit, func() error { return next.add(c, n.names) })
		} else if err := next.add(c, nil); err != nil {
			return err
		}
	}
	for _, add := range explicit { // configured names have precedence over names in certificates
		if err := add(); err != nil {
			return err
		}
	}
	s.certs.Store(next)
	return nil
}

func readServing(cert, key string) (certificate, error) {
	c, err := pki.ReadServing(cert, key)
	return func() *tls.Certificate { return c }, err
}

// add uses c for names, or for the names in it.
func (s *certificateSet) add(c certificate, names []string) error {
	if names == nil {
		leaf, err := x509.ParseCertificate(c().Certificate[0])
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

// certificate chooses the certificate for a client.
func (s *Certificates) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	now := s.certs.Load()
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if c, ok := now.exact[name]; ok {
		return c(), nil
	}
	if _, domain, ok := strings.Cut(name, "."); ok {
		if c, ok := now.exact["*."+domain]; ok {
			return c(), nil
		}
	}
	return now.defaultCert(), nil
}

// Valid returns an error if clients reject the cluster's own certificate or the default one at this time.
func (s *Certificates) Valid(now time.Time) error {
	for _, c := range []certificate{s.clusterCert, s.certs.Load().defaultCert} {
		leaf, err := x509.ParseCertificate(c().Certificate[0])
		switch {
		case err != nil:
			return fmt.Errorf("serving certificate: %w", err)
		case now.After(leaf.NotAfter):
			return fmt.Errorf("the serving certificate of %q has expired at %s", leaf.Subject.CommonName,
				leaf.NotAfter.Format(time.RFC3339))
		case now.Before(leaf.NotBefore):
			return fmt.Errorf("the serving certificate of %q is valid from %s only", leaf.Subject.CommonName,
				leaf.NotBefore.Format(time.RFC3339))
		}
	}
	return nil
}

// SetClientCAs sets the announced client CAs of one source. Clients choose their certificate by them.
func (s *Certificates) SetClientCAs(whose string, pem []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trusted[whose] = pem
	pool := x509.NewCertPool()
	for _, pem := range s.trusted {
		pool.AppendCertsFromPEM(pem)
	}
	s.config.Store(s.tls(pool))
}

// tls requests client certificates but does not require them, because of tokens. The authenticator verifies them.
func (s *Certificates) tls(clients *x509.CertPool) *tls.Config {
	curves, _ := CurveIDs(s.opts.Curves) // validated
	return &tls.Config{
		MinVersion:       tls.VersionTLS12,
		CurvePreferences: curves,
		GetCertificate:   s.certificate,
		ClientAuth:       tls.RequestClientCert,
		ClientCAs:        clients,
		NextProtos:       []string{"h2", "http/1.1"},
	}
}

// TLS is the configuration of the listener.
func (s *Certificates) TLS() *tls.Config {
	c := s.tls(nil)
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.config.Load(), nil }
	return c
}

// Watch reloads the certificates when one of their files changes.
func (s *Certificates) Watch(files *configreload.Files) error {
	list, err := s.opts.parse()
	if err != nil {
		return err
	}
	if s.opts.CertFile != "" {
		list = append(list, sniEntry{cert: s.opts.CertFile, key: s.opts.KeyFile})
	}
	for _, n := range list {
		for _, path := range []string{n.cert, n.key} {
			b, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("serving certificate: %w", err)
			}
			files.Watch("serving certificate", path, b, func(context.Context, []byte) error { return s.load() })
		}
	}
	if len(list) == 0 {
		return nil
	}
	return s.load() // load reads all files
}
