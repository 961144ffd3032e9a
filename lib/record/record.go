// SPDX-License-Identifier: Apache-2.0

// Package record stores small files that must survive a killed process: each is replaced atomically, and written twice,
// so that damage of one file on disk loses nothing. The runtime, the container supervisor and the pod network store the
// state of running pods in such files.
//
// The copy of FILE is FILE.copy. A damaged file is not overwritten silently: Read reports the damage, and SetAside
// keeps the file for inspection.
package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// copySuffix is the suffix of the copy, tmpSuffix that of a file while it is written.
	copySuffix = ".copy"
	tmpSuffix  = ".tmp"
	// maxSize bounds the size of a record. Most have a few kB, those of pods with a large environment some hundred kB.
	maxSize = 16 << 20
	// maxAside is the maximum number of damaged files that are kept.
	maxAside = 64
)

// Write replaces the record at path and its copy.
func Write(path string, body []byte) error {
	for _, p := range []string{path, path + copySuffix} {
		if err := replace(p, body); err != nil {
			return err
		}
	}
	return nil
}

func replace(path string, body []byte) error {
	tmp := path + tmpSuffix
	if err := os.WriteFile(tmp, body, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

// Read calls decode with the record or, if the record is missing or decode returns an error, with the copy. decode must
// have no effect if it returns an error. damage is the error of the record if the copy was used. err is fs.ErrNotExist
// if neither exists.
func Read(path string, decode func(body []byte) error) (damage, err error) {
	damage = readOne(path, decode)
	if damage == nil {
		return nil, nil
	}
	err = readOne(path+copySuffix, decode)
	if err == nil {
		return damage, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damage // a record of an earlier version has no copy
	}
	return nil, errors.Join(damage, err)
}

func readOne(path string, decode func([]byte) error) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxSize {
		return fmt.Errorf("%s is no record: %s of %d bytes", path, fi.Mode(), fi.Size())
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := decode(body); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Copy returns the path of a record's copy.
func Copy(path string) string { return path + copySuffix }

// Remove deletes the copy and then the record: a copy without record would look like a damaged record. Missing files
// are not an error.
func Remove(path string) error {
	var errs []error
	for _, p := range []string{path + copySuffix, path + copySuffix + tmpSuffix, path + tmpSuffix, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Of returns the name of the record that a file belongs to: the record, its copy, or a temporary file of them.
func Of(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(name, tmpSuffix), copySuffix)
}

// SetAside moves a damaged record, not its copy, to the directory dir and returns the new path. The caller must write
// the record again. dir keeps the newest maxAside files.
func SetAside(path, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("set damaged record aside: %w", err)
	}
	name := time.Now().UTC().Format("20060102T150405.000000000Z") + "-" + filepath.Base(filepath.Dir(path)) + "-" +
		filepath.Base(path)
	at := filepath.Join(dir, name)
	if err := os.Rename(path, at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("set damaged record aside: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return at, fmt.Errorf("tidy damaged records: %w", err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(b.Name(), a.Name()) })
	for _, e := range entries[min(len(entries), maxAside):] {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return at, fmt.Errorf("tidy damaged records: %w", err)
		}
	}
	return at, nil
}
