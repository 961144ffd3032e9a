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
	"slices"
	"sync/atomic"

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

// TokenKeysIn reads the keys that verify service-account tokens from the PEM file at path: public keys, private keys or
// certificates.
func TokenKeysIn(path string) ([]crypto.PublicKey, error) {
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

// TokenKeys are the keys of service-account tokens in a directory: the one that signs, and while it is replaced the
// other one, which verifies too. It is safe for concurrent use.
type TokenKeys struct {
	dir     string
	current atomic.Pointer[tokenKeys]
}

// tokenKeys are not modified.
type tokenKeys struct {
	signer           crypto.Signer
	further, retired []crypto.PublicKey
}

// OpenTokenKeys opens the keys in dir. It creates one if there is none.
func OpenTokenKeys(dir string) (*TokenKeys, error) {
	if _, err := ServiceAccountKey(dir); dir != "" && err != nil {
		return nil, err
	}
	k := &TokenKeys{dir: dir}
	next, err := readTokenKeys(dir)
	if err != nil {
		return nil, err
	}
	k.current.Store(next)
	return k, nil
}

// FixedTokenKeys has one key, which does not change.
func FixedTokenKeys(signer crypto.Signer) *TokenKeys {
	k := &TokenKeys{}
	k.current.Store(&tokenKeys{signer: signer})
	return k
}

func readTokenKeys(dir string) (*tokenKeys, error) {
	signer, err := ServiceAccountKey(dir)
	if err != nil || dir == "" {
		return &tokenKeys{signer: signer}, err
	}
	out := &tokenKeys{signer: signer}
	for _, end := range []string{"-next.key", "-old.key"} {
		key, err := keyIfAny(filepath.Join(dir, TokenKey+end))
		if err != nil {
			return nil, err
		}
		if key != nil && !samePublic(key.Public(), signer.Public()) {
			out.further = append(out.further, key.Public())
		}
	}
	retired := filepath.Join(dir, TokenKey+"-retired.pem")
	if _, err := os.Stat(retired); err == nil {
		if out.retired, err = TokenKeysIn(retired); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Name is how the key is named in files and messages.
func (k *TokenKeys) Name() string { return TokenKey }

// Signer is the key that signs.
func (k *TokenKeys) Signer() crypto.Signer { return k.current.Load().signer }

// Further returns the keys that verify in addition to it.
func (k *TokenKeys) Further() []crypto.PublicKey { return k.current.Load().further }

// Retired are the keys that were replaced.
func (k *TokenKeys) Retired() []crypto.PublicKey { return k.current.Load().retired }

// Refresh reads the keys again, and reports whether that changed them. On an error the previous ones stay.
func (k *TokenKeys) Refresh() (bool, error) {
	if k.dir == "" {
		return false, nil
	}
	if _, err := os.Stat(filepath.Join(k.dir, TokenKey+".key")); err != nil {
		return false, err
	}
	next, err := readTokenKeys(k.dir)
	if err != nil {
		return false, err
	}
	had := k.current.Load()
	if samePublic(next.signer.Public(), had.signer.Public()) &&
		slices.EqualFunc(next.further, had.further, samePublic) &&
		slices.EqualFunc(next.retired, had.retired, samePublic) {
		return false, nil
	}
	k.current.Store(next)
	return true, nil
}
