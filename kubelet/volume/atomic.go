// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
)

// The layout of a volume with files from API objects. A reader never sees a partial update:
//
//	..2026_01_02_15_04_05.123456789/   the files
//	..data -> ..2026_...               switched by one rename
//	name   -> ..data/name              for every first path element
const dataLink = "..data"

// maxVolumeFiles is the limit for directory entries that are read; an object has fewer keys.
const maxVolumeFiles = 1 << 17

// writeAtomically makes dir contain exactly files, and the directories under. changed is false if it had the files
// already. finish is called for the new directory before the rename makes it visible.
func writeAtomically(
	dir *inroot.Dir, files map[string]file, under []string, finish func(name string) error,
) (changed bool, err error) {
	old, err := dir.Readlink(dataLink)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("read volume: %w", err)
	}
	if old != "" && same(dir, old, files) {
		return false, link(dir, files, under)
	}
	name := ".." + time.Now().UTC().Format("2006_01_02_15_04_05.000000000")
	err = writeFiles(dir, name, files)
	if err == nil {
		err = finish(name)
	}
	if err != nil {
		return false, errors.Join(err, dir.RemoveAll(name))
	}
	const tmp = dataLink + "_tmp"
	if err := dir.RemoveAll(tmp); err != nil {
		return false, fmt.Errorf("switch volume: %w", err)
	}
	if err := dir.Symlink(name, tmp); err != nil {
		return false, fmt.Errorf("switch volume: %w", err)
	}
	if err := dir.Rename(tmp, dataLink); err != nil {
		return false, fmt.Errorf("switch volume: %w", err)
	}
	if err := link(dir, files, under); err != nil {
		return true, err
	}
	return true, sweep(dir, name)
}

func writeFiles(d *inroot.Dir, dir string, files map[string]file) error {
	if err := d.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("write volume: %w", err)
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		f := files[p]
		full := path.Join(dir, p)
		if err := d.MkdirAll(path.Dir(full), 0o755); err != nil {
			return fmt.Errorf("write volume: %w", err)
		}
		mode := fs.FileMode(f.mode) & fs.ModePerm // masked
		if err := d.WriteFile(full, f.data(), mode); err != nil {
			return fmt.Errorf("write volume: %w", err)
		}
		if f.uid >= 0 {
			if err := d.Lchown(full, f.uid, -1); err != nil {
				return fmt.Errorf("write volume: %w", err)
			}
		}
	}
	return nil
}

// same reports whether dir contains exactly files.
func same(d *inroot.Dir, dir string, files map[string]file) bool {
	n := 0
	err := d.Walk(dir, inroot.WalkOptions{}, func(e *inroot.Entry) error {
		if e.Info.IsDir() {
			return nil
		}
		f, ok := files[strings.TrimPrefix(e.Path, dir+"/")]
		if !ok {
			return errors.New("one too many")
		}
		b, err := d.ReadFile(e.Path, int64(f.size))
		if err != nil || !bytes.Equal(b, f.data()) {
			return errors.Join(err, errors.New("differs"))
		}
		n++
		return nil
	})
	return err == nil && n == len(files)
}

// link creates the visible names, and removes those of deleted files. under are directories on which other volumes are
// mounted. They are in no update: a container has its mount for as long as the directory is there.
func link(dir *inroot.Dir, files map[string]file, under []string) error {
	want := map[string]bool{}
	for p := range files {
		first, _, _ := strings.Cut(p, "/")
		want[first] = true
	}
	keep := map[string]bool{}
	for _, p := range under {
		first, _, _ := strings.Cut(p, "/")
		if want[first] || strings.HasPrefix(first, "..") {
			continue // a file or directory of the volume: the runtime mounts there, or says why not
		}
		keep[first] = true
		if err := dir.MkdirAll(p, 0o755); err != nil {
			return fmt.Errorf("make directory for a mount below the volume: %w", err)
		}
	}
	names, err := dir.Names(".", maxVolumeFiles)
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, n := range names {
		if strings.HasPrefix(n, "..") || keep[n] {
			continue
		}
		if !want[n] {
			if err := dir.RemoveAll(n); err != nil {
				return fmt.Errorf("unlink from volume: %w", err)
			}
		}
		delete(want, n)
	}
	for name := range want {
		if err := dir.Symlink(path.Join(dataLink, name), name); err != nil {
			return fmt.Errorf("link into volume: %w", err)
		}
	}
	return nil
}

// sweep removes the directories of earlier updates.
func sweep(dir *inroot.Dir, keep string) error {
	names, err := dir.Names(".", maxVolumeFiles)
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, n := range names {
		if !strings.HasPrefix(n, "..") || n == keep {
			continue
		}
		if i, err := dir.Lstat(n); err != nil || !i.IsDir() {
			continue
		}
		if err := dir.RemoveAll(n); err != nil {
			return fmt.Errorf("remove old content: %w", err)
		}
	}
	return nil
}
