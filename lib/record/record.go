// SPDX-License-Identifier: Apache-2.0

// Package record keeps small files that a process must find again after it was killed: whole or not at all, and twice, so that one that is
// damaged on disk costs nothing. The runtime, its supervisor and the pod network keep what they know of running pods in such files.
//
// The second copy of FILE is FILE.copy. A damaged file is not overwritten in silence: Read says what was wrong with it, and SetAside
// keeps it for inspection.
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
	// copySuffix ends the name of the second copy, tmpSuffix that of a file being written.
	copySuffix = ".copy"
	tmpSuffix  = ".tmp"
	// maxSize bounds what is read: records are a few kB, those of pods with much in their environment some hundred.
	maxSize = 16 << 20
	// maxAside is how many damaged files are kept.
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

// Read gives decode the record, and when decode refuses it, or it is not there, the copy. decode must not keep anything of a body that it
// refuses. damage says what was wrong with the record when the copy was taken. The error is fs.ErrNotExist when there is neither.
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

// Copy is the path of a record's second copy.
func Copy(path string) string { return path + copySuffix }

// Remove deletes the record and its copy. What is not there is no error. The copy goes first: alone it would pass for a damaged record's.
func Remove(path string) error {
	var errs []error
	for _, p := range []string{path + copySuffix, path + copySuffix + tmpSuffix, path + tmpSuffix, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Of is the name of the record that a file belongs to: it may be the record itself, its copy, or one of them being written.
func Of(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(name, tmpSuffix), copySuffix)
}

// SetAside moves the damaged record, not its copy, into the directory dir, if it is there, and returns where it is now. The record is
// to be written again. dir keeps the newest of them.
func SetAside(path, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("set damaged record aside: %w", err)
	}
	name := time.Now().UTC().Format("20060102T150405.000000000Z") + "-" + filepath.Base(filepath.Dir(path)) + "-" + filepath.Base(path)
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
