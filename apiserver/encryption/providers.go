// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/crypto/nacl/secretbox"
)

// provider is an encryption method with its keys.
type provider interface {
	// seal encrypts with the first key.
	seal(key string, plain []byte) ([]byte, error)
	// matches reports whether this provider encrypted a stored value.
	matches(stored []byte) bool
	// open decrypts; first means that the first key was used.
	open(key string, stored []byte) (plain []byte, first bool, err error)
}

var (
	errIdentity = errors.New("identity transformer tried to read encrypted data")
	errCorrupt  = errors.New("the stored value is damaged")
	errNoKey    = errors.New("no key of the configuration opens it")
)

// identity stores values unencrypted.
type identity struct{}

func (identity) seal(_ string, plain []byte) ([]byte, error) { return plain, nil }
func (identity) matches(stored []byte) bool                  { return !bytes.HasPrefix(stored, []byte(prefix)) }

func (identity) open(_ string, stored []byte) ([]byte, bool, error) { return stored, true, nil }

// box encrypts with one key. extra is additional authenticated data, for ciphers that support it.
type box interface {
	seal(extra, plain []byte) ([]byte, error)
	open(extra, sealed []byte) ([]byte, error)
}

// keyedProvider is a cipher with named keys; the first one encrypts: "k8s:enc:<cipher>:v1:<name>:<sealed>".
type keyedProvider struct {
	prefix string // up to the key's name
	keys   []namedBox
}

type namedBox struct {
	name string
	id   string // says which key it is, and nothing of the key
	box  box
}

func (k *keyedProvider) matches(stored []byte) bool { return bytes.HasPrefix(stored, []byte(k.prefix)) }

func (k *keyedProvider) seal(key string, plain []byte) ([]byte, error) {
	first := k.keys[0]
	sealed, err := first.box.seal([]byte(key), plain)
	if err != nil {
		return nil, err
	}
	return append([]byte(k.prefix+first.name+":"), sealed...), nil
}

func (k *keyedProvider) open(key string, stored []byte) ([]byte, bool, error) {
	rest := stored[len(k.prefix):]
	failed := errNoKey
	for i, nb := range k.keys {
		sealed, ok := bytes.CutPrefix(rest, []byte(nb.name+":"))
		if !ok {
			continue
		}
		plain, err := nb.box.open([]byte(key), sealed)
		if err == nil {
			return plain, i == 0, nil
		}
		failed = fmt.Errorf("key %s: %w", nb.name, err)
	}
	return nil, false, failed
}

// gcm is AES-GCM: nonce, then ciphertext and tag. Random nonces of 12 bytes are safe for about 200,000 writes per key,
// so keys must be rotated.
type gcm struct{ aead cipher.AEAD }

func newGCM(key []byte) (box, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return gcm{aead}, nil
}

func (g gcm) seal(extra, plain []byte) ([]byte, error) {
	nonce := make([]byte, g.aead.NonceSize(), g.aead.NonceSize()+len(plain)+g.aead.Overhead())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return g.aead.Seal(nonce, nonce, plain, extra), nil
}

func (g gcm) open(extra, sealed []byte) ([]byte, error) {
	n := g.aead.NonceSize()
	if len(sealed) < n {
		return nil, errCorrupt
	}
	return g.aead.Open(nil, sealed[:n], sealed[n:], extra)
}

// cbc is AES-CBC with PKCS#7 padding: initialization vector, then ciphertext. It does not detect modification; it
// exists for data that was written with it.
type cbc struct{ block cipher.Block }

func newCBC(key []byte) (box, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cbc{block}, nil
}

func (c cbc) seal(_, plain []byte) ([]byte, error) {
	pad := aes.BlockSize - len(plain)%aes.BlockSize
	out := make([]byte, aes.BlockSize+len(plain)+pad)
	if _, err := rand.Read(out[:aes.BlockSize]); err != nil {
		return nil, err
	}
	copy(out[aes.BlockSize:], plain)
	for i := len(out) - pad; i < len(out); i++ {
		out[i] = byte(pad)
	}
	cipher.NewCBCEncrypter(c.block, out[:aes.BlockSize]).CryptBlocks(out[aes.BlockSize:], out[aes.BlockSize:])
	return out, nil
}

func (c cbc) open(_, sealed []byte) ([]byte, error) {
	if len(sealed) < 2*aes.BlockSize || len(sealed)%aes.BlockSize != 0 {
		return nil, errCorrupt
	}
	out := make([]byte, len(sealed)-aes.BlockSize)
	cipher.NewCBCDecrypter(c.block, sealed[:aes.BlockSize]).CryptBlocks(out, sealed[aes.BlockSize:])
	pad := int(out[len(out)-1])
	if pad == 0 || pad > aes.BlockSize || pad > len(out) {
		return nil, errCorrupt
	}
	for _, b := range out[len(out)-pad:] {
		if int(b) != pad {
			return nil, errCorrupt
		}
	}
	return out[:len(out)-pad], nil
}

// nacl is XSalsa20-Poly1305: nonce, then ciphertext.
type nacl struct{ key [32]byte }

const naclNonce = 24

func newNaCl(key []byte) (box, error) {
	if len(key) != 32 {
		return nil, fmt.Errorf("a secretbox key has 32 bytes, this one %d", len(key))
	}
	n := &nacl{}
	copy(n.key[:], key)
	return n, nil
}

func (n *nacl) seal(_, plain []byte) ([]byte, error) {
	var nonce [naclNonce]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, err
	}
	return secretbox.Seal(nonce[:], plain, &nonce, &n.key), nil
}

func (n *nacl) open(_, sealed []byte) ([]byte, error) {
	if len(sealed) < naclNonce {
		return nil, errCorrupt
	}
	var nonce [naclNonce]byte
	copy(nonce[:], sealed)
	plain, ok := secretbox.Open(nil, sealed[naclNonce:], &nonce, &n.key)
	if !ok {
		return nil, errCorrupt
	}
	return plain, nil
}
