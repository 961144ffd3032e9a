// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"keelson/pki"
)

// SyncDir brings the entries of a directory to disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// SyncAll brings the file system that holds dir to disk.
func SyncAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// WriteIfChanged writes a private file unless it has this content already (P7: a restart writes nothing).
func WriteIfChanged(path string, b []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return pki.WriteFile(path, b, 0o600)
}

// Exists reports whether there is a file at path that can be looked at.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
