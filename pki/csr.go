// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// ParseRequest parses a certificate request in PEM and verifies its signature: the sender holds the key.
func ParseRequest(b []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read certificate request: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return req, nil
}

// Sign issues a certificate for req with these usages and this lifetime, but not beyond the CA's own expiration. It
// returns PEM.
func (a *Authority) Sign(
	req *x509.CertificateRequest, usage x509.KeyUsage, ext []x509.ExtKeyUsage, life time.Duration,
) ([]byte, error) {
	now := a.now()
	by := a.state.Load()
	if !now.Before(by.cert.NotAfter) {
		return nil, fmt.Errorf("the signer has expired: NotAfter=%v", by.cert.NotAfter)
	}
	number, err := serial(now)
	if err != nil {
		return nil, err
	}
	end := now.Add(life)
	if end.After(by.cert.NotAfter) {
		end = by.cert.NotAfter
	}
	cert := &x509.Certificate{
		SerialNumber:          number,
		Subject:               req.Subject,
		DNSNames:              req.DNSNames,
		IPAddresses:           req.IPAddresses,
		EmailAddresses:        req.EmailAddresses,
		URIs:                  req.URIs,
		PublicKeyAlgorithm:    req.PublicKeyAlgorithm,
		PublicKey:             req.PublicKey,
		NotBefore:             validFrom(now, end.Sub(now)),
		NotAfter:              end,
		KeyUsage:              usage,
		ExtKeyUsage:           ext,
		BasicConstraintsValid: true,
		IsCA:                  false,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, by.cert, req.PublicKey, by.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", req.Subject.CommonName, err)
	}
	return append(encodeCertificate(der), by.chain()...), nil
}
