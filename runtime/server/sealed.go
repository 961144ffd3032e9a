// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
	"keelson/runtime/pods"
)

// Environment and arguments of a container may have values of Secrets. On disk they are only in the OCI spec, which
// is encrypted. The key is on a tmpfs, so it survives a restart of this process, and is lost with the power.
// Containers do not survive that either, so a spec that cannot be read any more is not needed any more.

// keyDir is where the tmpfs with the key is mounted, keyFile the key's name in it.
const (
	keyDir   = "key"
	keyFile  = "specs"
	keyBytes = 32
)

// The files of the spec in a container's directory.
const (
	specFile    = "spec.sealed"
	oldSpecFile = "spec.json" // of earlier versions
)

// seal encrypts and decrypts OCI specs.
type seal struct{ cipher.AEAD }

// openSeal mounts the tmpfs and makes the key, unless an earlier start of this boot has done that.
func openSeal(dir string) (*seal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of the key: %w", err)
	}
	mounts, err := linux.Mounts()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(mounts, func(m linux.Mount) bool { return m.Point == dir }) {
		flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=0700,size=64k"); err != nil {
			return nil, fmt.Errorf("mount tmpfs for the key of container specs: %w", err)
		}
	}
	at := filepath.Join(dir, keyFile)
	key, err := os.ReadFile(at) // our own
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(key) != keyBytes {
		key = make([]byte, keyBytes)
		_, _ = rand.Read(key) // never fails
		err = os.WriteFile(at, key, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("key of container specs: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("key of container specs: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("key of container specs: %w", err)
	}
	return &seal{aead}, nil
}

// writeSpec writes the OCI spec of a container, encrypted.
func (s *Server) writeSpec(c *pods.Container, spec *specs.Spec) error {
	body, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode container spec: %w", err)
	}
	at := filepath.Join(c.Dir, specFile)
	if err := os.WriteFile(at+".tmp", s.seal.Seal(nil, nil, body, []byte(c.ID)), 0o600); err != nil {
		return fmt.Errorf("write container spec: %w", err)
	}
	if err := os.Rename(at+".tmp", at); err != nil {
		return fmt.Errorf("write container spec: %w", err)
	}
	return nil
}

// spec reads the OCI spec of a container: it is large and seldom needed, so it is not kept in memory.
func (s *Server) spec(c *pods.Container) (*specs.Spec, error) {
	raw, err := os.ReadFile(filepath.Join(c.Dir, specFile))
	if err != nil {
		return nil, fmt.Errorf("read container spec: %w", err)
	}
	body, err := s.seal.Open(nil, nil, raw, []byte(c.ID))
	if err != nil {
		return nil, fmt.Errorf("read container spec: it is damaged, or was written before the machine started: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(body, &spec); err != nil {
		return nil, fmt.Errorf("read container spec: %w", err)
	}
	return &spec, nil
}

// sealOldSpec encrypts the spec that an earlier version has written, and removes environment and arguments from the
// record.
func (s *Server) sealOldSpec(ctr *pods.Container) error {
	old := filepath.Join(ctr.Dir, oldSpecFile)
	raw, err := os.ReadFile(old) // our own
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var spec specs.Spec
	if err == nil {
		err = json.Unmarshal(raw, &spec)
	}
	if err == nil {
		err = s.writeSpec(ctr, &spec)
	}
	if err == nil {
		err = ctr.Update(func(r *pods.ContainerRecord) { r.Config.V = pods.WithoutEnvironment(r.Config.V) })
	}
	if err != nil {
		return fmt.Errorf("encrypt the spec of container %s: %w", ctr.ID, err)
	}
	return os.Remove(old)
}
