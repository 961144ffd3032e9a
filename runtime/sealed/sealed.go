// SPDX-License-Identifier: Apache-2.0

// Package sealed keeps the OCI specs of containers on disk, encrypted. Environment and arguments of a container may
// have values of Secrets, and on disk they are in the spec only. container writes a spec when it makes a container;
// container and stream read it to start one and to run commands in it. It never keeps a spec or a key where it survives
// the power.
//
// The key is on a tmpfs, so it survives a restart of this process, and is lost with the power. Containers do not
// survive that either, so a spec that cannot be read any more is not needed any more. There is no lock: a spec is
// written by those who hold Container.Op, and replaced as a whole.
package sealed

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

// Specs encrypts and decrypts OCI specs. Open comes before all else but Close.
type Specs struct {
	dir  string
	aead cipher.AEAD
}

// New returns the Specs of a runtime's directory. It makes nothing.
func New(dir string) *Specs { return &Specs{dir: filepath.Join(dir, keyDir)} }

// Close unmounts the tmpfs: what was written cannot be read any more.
func (s *Specs) Close() error { return linux.Unmount(s.dir) }

// Open mounts the tmpfs and makes the key, unless an earlier start of this boot has done that.
func (s *Specs) Open() error {
	key, err := openKey(s.dir)
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return fmt.Errorf("key of container specs: %w", err)
	}
	s.aead, err = cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return fmt.Errorf("key of container specs: %w", err)
	}
	return nil
}

func openKey(dir string) ([]byte, error) {
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
	return key, nil
}

// Write writes the OCI spec of a container, encrypted.
func (s *Specs) Write(c *pods.Container, spec *specs.Spec) error {
	body, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode container spec: %w", err)
	}
	at := filepath.Join(c.Dir, specFile)
	if err := os.WriteFile(at+".tmp", s.aead.Seal(nil, nil, body, []byte(c.ID)), 0o600); err != nil {
		return fmt.Errorf("write container spec: %w", err)
	}
	if err := os.Rename(at+".tmp", at); err != nil {
		return fmt.Errorf("write container spec: %w", err)
	}
	return nil
}

// Read reads the OCI spec of a container: it is large and seldom needed, so it is not kept in memory.
func (s *Specs) Read(c *pods.Container) (*specs.Spec, error) {
	raw, err := os.ReadFile(filepath.Join(c.Dir, specFile))
	if err != nil {
		return nil, fmt.Errorf("read container spec: %w", err)
	}
	body, err := s.aead.Open(nil, nil, raw, []byte(c.ID))
	if err != nil {
		return nil, fmt.Errorf("read container spec: it is damaged, or was written before the machine started: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(body, &spec); err != nil {
		return nil, fmt.Errorf("read container spec: %w", err)
	}
	return &spec, nil
}

// SealOld encrypts the spec that an earlier version has written, and removes environment and arguments from the
// record.
func (s *Specs) SealOld(ctr *pods.Container) error {
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
		err = s.Write(ctr, &spec)
	}
	if err == nil {
		err = ctr.Update(func(r *pods.ContainerRecord) { r.Config.V = pods.WithoutEnvironment(r.Config.V) })
	}
	if err != nil {
		return fmt.Errorf("encrypt the spec of container %s: %w", ctr.ID, err)
	}
	return os.Remove(old)
}
