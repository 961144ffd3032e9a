// SPDX-License-Identifier: Apache-2.0

// Package records stores the checkpoints of a part of the kubelet: one JSON file for each pod or claim, named by its
// UID, in a subdirectory of the kubelet's root directory. Device managers save before they act and read when the
// kubelet starts. No container can read the files.
package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"keelson/kubelet/rootdir"
	"keelson/lib/inroot"
)

// Suffix ends the names of files that belong to a UID.
const Suffix = ".json"

const (
	tempSuffix = ".new" // suffix of a file that is being written
	maxFiles   = 4096   // that are read of a directory
)

// Dir is one directory of records.
type Dir struct {
	// Root is the kubelet's directory, and Name the directory's within it.
	Root rootdir.Dir
	Name string
	// Limit is the size of a file in bytes at most.
	Limit int
}

// path is a file's. The name leads to no other directory.
func (d Dir) path(name string) (string, error) {
	if name == Suffix || strings.HasPrefix(name, ".") || filepath.Base(name) != name {
		return "", fmt.Errorf("%.100q cannot be part of a path", name)
	}
	return filepath.Join(d.Name, name), nil
}

func (d Dir) open(name string, do func(root *inroot.Dir, path string) error) error {
	path, err := d.path(name)
	if err != nil {
		return err
	}
	root, err := inroot.Open(string(d.Root))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // O_PATH
	return do(root, path)
}

// Save writes a file atomically.
func (d Dir) Save(name string, what any) error {
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	if len(b) > d.Limit {
		return fmt.Errorf("it takes %d bytes, more than %d", len(b), d.Limit)
	}
	return d.open(name, func(root *inroot.Dir, path string) error {
		if err := root.MkdirAll(d.Name, 0o700); err != nil {
			return err
		}
		if err := root.WriteFile(path+tempSuffix, b, 0o600); err != nil {
			return err
		}
		return root.Rename(path+tempSuffix, path)
	})
}

// Read fills into from a file.
func (d Dir) Read(name string, into any) error {
	return d.open(name, func(root *inroot.Dir, path string) error {
		b, err := root.ReadFile(path, int64(d.Limit))
		if err != nil {
			return err
		}
		return json.Unmarshal(b, into)
	})
}

// Remove deletes a file; one that is not there is no error.
func (d Dir) Remove(name string) error {
	return d.open(name, func(root *inroot.Dir, path string) error {
		if err := root.Remove(path); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	})
}

// Names lists the files, but those of writes that were cut short. A directory that is not there has none.
func (d Dir) Names() ([]string, error) {
	root, err := inroot.Open(string(d.Root))
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // O_PATH
	all, err := root.Names(d.Name, maxFiles)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	var out []string
	for _, name := range all {
		if !strings.HasSuffix(name, tempSuffix) {
			out = append(out, name)
		}
	}
	return out, err
}
