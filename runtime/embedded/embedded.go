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
	"strings"

	"github.com/klauspost/compress/zstd"
)

// files holds the programs when make has made them. The pattern takes in this file too, so that it is satisfied when not.
//
//go:embed all:*
var files embed.FS

// ErrMissing says that this binary was built without a program.
var ErrMissing = errors.New("this binary was built without the container helper: run make")

// Helper writes the container helper to path, mode 0755, unless the file there is the same already, by its content. repaired says that the
// file was what this program had written, and was damaged or changed since.
func Helper(path string) (repaired bool, err error) { return install("keelson-shim", path) }

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

// install replaces path by rename, so that a program that runs from it is not disturbed. A note beside it says which packed program it was
// made from and what the program must be, so that one that is as it should be is not unpacked again; one that was damaged, or changed, is.
func install(name, path string) (repaired bool, err error) {
	packed, err := files.ReadFile(name + ".zst")
	if errors.Is(err, fs.ErrNotExist) {
		return false, ErrMissing
	}
	if err != nil {
		return false, fmt.Errorf("read embedded %s: %w", name, err)
	}
	return installPacked(name, path, packed, read)
}

func installPacked(name, path string, packed []byte, read func(string) ([]byte, error)) (repaired bool, err error) {
	from := fmt.Sprintf("%x", sha256.Sum256(packed))
	note := path + ".from"
	have, err := os.ReadFile(note)
	if err == nil && strings.HasPrefix(string(have), from+" ") {
		if is, err := fingerprint(path); err == nil && string(have) == from+" "+is {
			return false, nil
		}
		repaired = true
	}
	body, err := read(name)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, fmt.Errorf("install %s: %w", name, err)
	}
	// The note goes first and comes last: a crash between leaves a program without a note, which is written again.
	if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("install %s: %w", name, err)
	}
	if err := replace(path, body, programMode); err != nil {
		return false, fmt.Errorf("install %s: %w", name, err)
	}
	want := fmt.Sprintf("%d %x %s", len(body), sha256.Sum256(body), programMode)
	if is, err := fingerprint(path); err != nil || is != want {
		return false, fmt.Errorf("install %s: %s is not what was written (%w)", name, path, err)
	}
	if err := replace(note, []byte(from+" "+want), 0o600); err != nil {
		return false, fmt.Errorf("install %s: %w", name, err)
	}
	return repaired, nil
}

const programMode fs.FileMode = 0o755

// fingerprint is the size, hash and mode of a regular file.
func fingerprint(path string) (string, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %x %s", n, h.Sum(nil), fi.Mode()), nil
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
