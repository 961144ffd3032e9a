// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ServiceAccountKey returns the key that signs service-account tokens (ECDSA P-256, so ES256), kept in dir/sa.key; it makes one when there is none.
func ServiceAccountKey(dir string) (crypto.Signer, error) {
	path := filepath.Join(dir, "sa.key")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeServiceAccountKey(dir, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read service-account key: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("read service-account key: %s holds no PEM block", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read service-account key %s: %w", path, err)
	}
	s, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("read service-account key %s: a key of type %T cannot sign", path, key)
	}
	return s, nil
}

func makeServiceAccountKey(dir, path string) (crypto.Signer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificate directory: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make service-account key: %w", err)
	}
	b, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("make service-account key: %w", err)
	}
	return key, WriteFile(path, b, 0o600)
}
