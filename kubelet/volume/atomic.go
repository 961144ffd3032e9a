// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A written volume looks like this, so that a reader never sees half of a change:
//
//	..2026_01_02_15_04_05.123456789/   the files
//	..data -> ..2026_...               switched by one rename
//	name   -> ..data/name              for every first path element
const dataLink = "..data"

// writeAtomically brings dir to hold exactly files. changed is false when it did already. finish is called on the new files before
// anybody sees them.
func writeAtomically(dir string, files map[string]file, finish func(path string) error) (changed bool, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // containers of any user read it
		return false, fmt.Errorf("make volume: %w", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // as kubelets make it; mounts of it are read-only in effect
		return false, fmt.Errorf("make volume: %w", err)
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("read volume: %w", err)
	}
	if old != "" && same(filepath.Join(dir, old), files) {
		return false, link(dir, files)
	}
	name := ".." + time.Now().UTC().Format("2006_01_02_15_04_05.000000000")
	err = writeFiles(filepath.Join(dir, name), files)
	if err == nil {
		err = finish(filepath.Join(dir, name))
	}
	if err != nil {
		return false, errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	tmp := filepath.Join(dir, dataLink+"_tmp")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("switch volume: %w", err)
	}
	if err := os.Symlink(name, tmp); err != nil {
		return false, fmt.Errorf("switch volume: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, dataLink)); err != nil {
		return false, fmt.Errorf("switch volume: %w", err)
	}
	if err := link(dir, files); err != nil {
		return true, err
	}
	return true, sweep(dir, name)
}

func writeFiles(dir string, files map[string]file) error {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // containers of any user read it
		return fmt.Errorf("write volume: %w", err)
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		f := files[p]
		full := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil { //nolint:gosec // as above
			return fmt.Errorf("write volume: %w", err)
		}
		mode := fs.FileMode(f.mode) & fs.ModePerm //nolint:gosec // masked
		if err := os.WriteFile(full, f.data, mode); err != nil {
			return fmt.Errorf("write volume: %w", err)
		}
		if err := os.Chmod(full, mode); err != nil { // regardless of the umask
			return fmt.Errorf("write volume: %w", err)
		}
		if f.uid >= 0 {
			if err := os.Chown(full, f.uid, -1); err != nil {
				return fmt.Errorf("write volume: %w", err)
			}
		}
	}
	return nil
}

// same reports whether dir holds exactly files.
func same(dir string, files map[string]file) bool {
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, ok := files[rel]
		if !ok {
			return errors.New("one too many")
		}
		b, err := os.ReadFile(path) //nolint:gosec // our own volume
		if err != nil || !bytes.Equal(b, f.data) {
			return errors.Join(err, errors.New("differs"))
		}
		n++
		return nil
	})
	return err == nil && n == len(files)
}

// link makes the names that users see, and removes those of files that are gone.
func link(dir string, files map[string]file) error {
	want := map[string]bool{}
	for p := range files {
		first, _, _ := strings.Cut(p, "/")
		want[first] = true
	}
	ents, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, e := range ents {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		if !want[e.Name()] {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("unlink from volume: %w", err)
			}
		}
		delete(want, e.Name())
	}
	for name := range want {
		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("link into volume: %w", err)
		}
	}
	return nil
}

// sweep removes earlier contents.
func sweep(dir, keep string) error {
	ents, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, e := range ents {
		if e.IsDir() && strings.HasPrefix(e.Name(), "..") && e.Name() != keep {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove old content: %w", err)
			}
		}
	}
	return nil
}
