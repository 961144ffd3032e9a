// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Authorities are the certificates in PEM, which must hold one at least.
func Authorities(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("it holds no certificate")
	}
	return pool, nil
}

// ReadAuthorities reads a file of certificates; whose is who they vouch for, for errors.
func ReadAuthorities(path, whose string) ([]byte, error) {
	pem, err := os.ReadFile(path)
	if err == nil {
		_, err = Authorities(pem)
	}
	if err != nil {
		return nil, fmt.Errorf("authorities of %s: %s: %w", whose, path, err)
	}
	return pem, nil
}

// ReadServing reads a serving certificate and its key.
func ReadServing(cert, key string) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("serving certificate %s with key %s: %w", cert, key, err)
	}
	return &c, nil
}
