// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// mutual is the TLS configuration of a directory with a projected certificate (credentials.pem) and the certificates
// of the authorities that are trusted (trust.pem). Each side asks for the other's certificate.
func mutual(dir string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "credentials.pem"), filepath.Join(dir, "credentials.pem"))
	if err != nil {
		return nil, err
	}
	trusted, err := os.ReadFile(filepath.Join(dir, "trust.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(trusted) {
		return nil, fmt.Errorf("%s has no certificates", filepath.Join(dir, "trust.pem"))
	}
	return &tls.Config{
		Certificates: []tls.Certificate{own},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	}, nil
}

// serveMutual answers on port 443 with the identity in the client's certificate.
func serveMutual(dir string) error {
	cfg, err := mutual(dir)
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr: ":443",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "client identity: %v\n", r.TLS.PeerCertificates[0].URIs) // the client may be gone
		}),
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         cfg,
	}
	return server.ListenAndServeTLS("", "")
}

// getMutual prints the answer of a URL.
func getMutual(dir, url string) error {
	cfg, err := mutual(dir)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg}, Timeout: 10 * time.Second}
	answer, err := client.Get(url) //nolint:noctx // the client has a time-out
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, answer.Body)
	return errors.Join(err, answer.Body.Close())
}
