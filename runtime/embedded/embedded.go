// SPDX-License-Identifier: Apache-2.0

// Package embedded carries the programs that Keelson brings along, compressed: the container helper and the built-in image's
// program. `make` puts them beside this file; without them everything compiles, and who needs one is told what to do.
package embedded

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// files holds the programs when make has made them. The pattern takes in this file too, so that it is satisfied when not.
//
//go:embed all:*
var files embed.FS

// ErrMissing says that this binary was built without a program.
var ErrMissing = errors.New("this binary was built without the container helper: run make")

// Helper writes the container helper to path, mode 0755, unless the file there is the same already.
func Helper(path string) error { return install("keelson-shim", path) }

// Hello returns the built-in image's program.
func Hello() ([]byte, error) { return read("hello") }

func read(name string) ([]byte, error) {
	packed, err := files.ReadFile(name + ".zst")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, fmt.Errorf("read embedded %s: %w", name, err)
	}
	d, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("read embedded %s: %w", name, err)
	}
	defer d.Close()
	body, err := io.ReadAll(d)
	if err != nil {
		return nil, fmt.Errorf("unpack embedded %s: %w", name, err)
	}
	return body, nil
}

// install replaces path by rename, so that a program that runs from it is not disturbed. A note beside it holds the hash of the
// packed program it was made from, so that an unchanged one is neither unpacked nor read.
func install(name, path string) error {
	packed, err := files.ReadFile(name + ".zst")
	if errors.Is(err, fs.ErrNotExist) {
		return ErrMissing
	}
	if err != nil {
		return fmt.Errorf("read embedded %s: %w", name, err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(packed))
	note := path + ".from"
	if have, err := os.ReadFile(note); err == nil && string(have) == sum {
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
			return nil
		}
	}
	body, err := read(name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("install %s: %w", name, err)
	}
	// The note goes first and comes last: a crash between leaves a program without a note, which is written again.
	if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("install %s: %w", name, err)
	}
	if err := replace(path, body, 0o755); err != nil {
		return fmt.Errorf("install %s: %w", name, err)
	}
	if err := replace(note, []byte(sum), 0o600); err != nil {
		return fmt.Errorf("install %s: %w", name, err)
	}
	return nil
}

func replace(path string, body []byte, mode fs.FileMode) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, body, mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
