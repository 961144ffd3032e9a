// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/keyutil"
)

// ServiceAccountKey returns the key that signs service-account tokens (ECDSA P-256, algorithm ES256), stored in
// dir/sa.key. It creates the key if there is none. With dir "" the key is new and only in memory.
func ServiceAccountKey(dir string) (crypto.Signer, error) {
	if dir == "" {
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	path := filepath.Join(dir, "sa.key")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeServiceAccountKey(dir, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read service-account key: %w", err)
	}
	return parseSigner(path, b)
}

// TokenSigner reads the private key that signs service-account tokens from the PEM file at path.
func TokenSigner(path string) (crypto.Signer, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read service-account key: %w", err)
	}
	return parseSigner(path, b)
}

func parseSigner(path string, b []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(b)
	if err != nil {
		return nil, fmt.Errorf("read service-account key %s: %w", path, err)
	}
	s, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("read service-account key %s: a key of type %T cannot sign", path, key)
	}
	return s, nil
}

// TokenKeys reads the keys that verify service-account tokens from the PEM file at path: public keys, private keys or
// certificates.
func TokenKeys(path string) ([]crypto.PublicKey, error) {
	found, err := keyutil.PublicKeysFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("read service-account keys: %w", err)
	}
	out := make([]crypto.PublicKey, len(found))
	for i, k := range found {
		out[i] = k
	}
	return out, nil
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
