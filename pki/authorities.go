// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"
)

// Authorities parses certificates in PEM; there must be at least one.
func Authorities(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("it holds no certificate")
	}
	return pool, nil
}

// ReadAuthorities reads the certificate file of a flag; errors begin with the flag.
func ReadAuthorities(path, flag string) ([]byte, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if _, err = Authorities(pem); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", flag, path, err)
	}
	return pem, nil
}

// ReadAuthority reads a CA from PEM files of its certificate and its key.
func ReadAuthority(cert, key string) (*Authority, error) {
	var p Pair
	var err error
	if p.CertPEM, err = os.ReadFile(cert); err != nil {
		return nil, err
	}
	if p.KeyPEM, err = os.ReadFile(key); err != nil {
		return nil, err
	}
	state, err := parseState(p)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
	}
	if !state.cert.IsCA {
		return nil, fmt.Errorf("%s is the certificate of %q, not of an authority", cert, state.cert.Subject.CommonName)
	}
	return newAuthority("", "", leafLife, time.Now, state), nil
}

// ReadServing reads a serving certificate and its key.
func ReadServing(cert, key string) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("serving certificate %s with key %s: %w", cert, key, err)
	}
	return &c, nil
}
