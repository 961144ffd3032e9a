// SPDX-License-Identifier: Apache-2.0

// Package embedded contains, compressed, the programs that are linked into the keelson binary: the shim, the program of
// the built-in image, and the etcd of test environments. Package runtime installs the shim and serves the image,
// cluster/assets installs the etcd. `make` builds them into this directory; a binary built without them works except
// for what needs them, and returns ErrMissing.
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

// files holds the programs. The pattern also matches this file: an embed pattern without a match does not compile.
//
//go:embed all:*
var files embed.FS

// ErrMissing means that this binary was built without a program.
var ErrMissing = errors.New("this binary was built without the programs that it carries: run make")

// InstallShim writes the shim to path, mode 0755, unless the file there has that content already. repaired: the file
// had been installed from this same binary, and was damaged or changed since.
func InstallShim(path string) (repaired bool, err error) { return install("keelson-shim", path) }

// InstallEtcd writes the etcd of test environments to path as InstallShim writes the shim.
func InstallEtcd(path string) (repaired bool, err error) { return install("etcd", path) }

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

// install replaces path by rename, so that a process that runs from it is not disturbed. A file next to it, the stamp,
// holds the hash of the packed program and the fingerprint of the unpacked one. A program that matches its stamp is not
// unpacked again.
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
	stamp := path + ".from"
	have, err := os.ReadFile(stamp)
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
	// The stamp is removed first and written last: a program without a stamp, as a crash leaves it, is installed again.
	if err := os.Remove(stamp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("install %s: %w", name, err)
	}
	if err := replace(path, body, programMode); err != nil {
		return false, fmt.Errorf("install %s: %w", name, err)
	}
	want := fmt.Sprintf("%d %x %s", len(body), sha256.Sum256(body), programMode)
	if is, err := fingerprint(path); err != nil || is != want {
		return false, fmt.Errorf("install %s: %s is not what was written (%w)", name, path, err)
	}
	if err := replace(stamp, []byte(from+" "+want), 0o600); err != nil {
		return false, fmt.Errorf("install %s: %w", name, err)
	}
	return repaired, nil
}

const programMode fs.FileMode = 0o755

// fingerprint returns the size, hash and mode of a regular file.
func fingerprint(path string) (string, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
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
