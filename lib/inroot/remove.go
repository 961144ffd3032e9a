// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// RemoveAll removes p and everything below it. It follows no link and never removes files of another mount: a mount
// inside is EBUSY. A tree deeper than MaxDepth is flattened while it is removed. A missing p is not an error.
func (d *Dir) RemoveAll(p string) error {
	if rel(p) == "." {
		return d.fail("remove", p, unix.EBUSY)
	}
	fd, base, err := d.parent(p)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return d.fail("remove", p, err)
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	r := remover{top: -1}
	return d.fail("remove", p, r.remove(fd, base, 0))
}

// RemoveContents is RemoveAll for everything below the directory p, which stays.
func (d *Dir) RemoveContents(p string) error {
	fd, err := d.at(p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return d.fail("remove", p, err)
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	r := remover{top: -1}
	return d.fail("remove", p, r.empty(fd, ".", 0))
}

// Bounds of the work while another process adds files: passes over one directory, and deep directories that are moved
// up.
const (
	maxPasses = 100
	maxMoves  = 1 << 20
)

type remover struct {
	top   int // the uppermost directory; deep ones are moved there
	moved int // number of moved directories
}

// remove removes base from the directory dirfd.
func (r *remover) remove(dirfd int, base string, depth int) error {
	err := unix.Unlinkat(dirfd, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	// EISDIR on Linux, EPERM by POSIX; a mount point is EBUSY.
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	for range maxPasses {
		derr := unix.Unlinkat(dirfd, base, unix.AT_REMOVEDIR)
		switch {
		case derr == nil, errors.Is(derr, unix.ENOENT):
			return nil
		case errors.Is(derr, unix.ENOTDIR):
			return err
		case !errors.Is(derr, unix.ENOTEMPTY) && !errors.Is(derr, unix.EEXIST):
			return derr
		}
		if depth >= MaxDepth {
			return r.flatten(dirfd, base)
		}
		if err := r.empty(dirfd, base, depth); err != nil {
			return err
		}
	}
	return unix.ENOTEMPTY
}

// empty removes the content of a directory, until it is empty.
func (r *remover) empty(dirfd int, base string, depth int) error {
	fd, err := openat2(dirfd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, oneName|unix.RESOLVE_NO_XDEV)
	switch {
	case errors.Is(err, unix.EXDEV):
		return unix.EBUSY
	case gone(err):
		return nil
	case err != nil:
		return err
	}
	file := os.NewFile(uintptr(fd), base) // a descriptor
	defer func() { _ = file.Close() }()   // read only
	if r.top < 0 {
		r.top = fd
		defer func() { r.top = -1 }()
	}
	for pass := 0; pass < maxPasses; pass++ {
		n := 0
		before := r.moved
		for names, err := range batches(file) {
			if err != nil {
				return err
			}
			for _, name := range names {
				n++
				if err := r.remove(fd, name, depth+1); err != nil {
					return err
				}
			}
		}
		if n == 0 {
			return nil
		}
		if fd == r.top && r.moved > before && r.moved < maxMoves {
			pass = -1 // a directory was moved up, so the passes are counted again
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return unix.ENOTEMPTY
}

// flatten moves a directory that is too deep to the top, where a later pass removes it.
func (r *remover) flatten(dirfd int, base string) error {
	for {
		r.moved++
		err := unix.Renameat2(dirfd, base, r.top, ".inroot-"+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}
