// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxTries bounds the retries of a resolution that failed because of a concurrent rename.
const maxTries = 1000

// Dir is an open root. Its methods, except Close, are safe for concurrent use.
type Dir struct {
	fd      int // O_PATH
	name    string
	resolve uint64
}

// Open opens a directory as a root. dir itself is trusted: links in it are followed.
func Open(dir string) (*Dir, error) {
	return open(dir, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
}

// OpenBeneath is Open, but a symbolic link that points out of the root (every absolute one does) is refused with EXDEV.
func OpenBeneath(dir string) (*Dir, error) {
	return open(dir, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
}

func open(dir string, resolve uint64) (*Dir, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return &Dir{fd: fd, name: dir, resolve: resolve}, nil
}

// Close closes the root's descriptor.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// Name returns the path with which the root was opened, for messages.
func (d *Dir) Name() string { return d.name }

// ProcPath returns a path to the root by its descriptor, for mount(2) and the like. It is valid until Close.
func (d *Dir) ProcPath() string { return procPath(d.fd) }

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// rel cleans p as if the root were "/"; the root itself is ".".
func rel(p string) string {
	p = path.Clean("/" + p)
	if p == "/" {
		return "."
	}
	return p[1:]
}

func (d *Dir) fail(op, p string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return err
	}
	if errors.Is(err, unix.ENOSYS) {
		err = fmt.Errorf("this kernel has no openat2, which Linux 5.6 and later have: %w", err)
	}
	return &fs.PathError{Op: op, Path: filepath.Join(d.name, rel(p)), Err: err}
}

// openat2 resolves p, which is clean, below dirfd.
func openat2(dirfd int, p string, flags int, mode uint32, resolve uint64) (int, error) {
	// flags are positive
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Mode: uint64(mode), Resolve: resolve}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(dirfd, p, &how)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) || try >= maxTries {
			return -1, err
		}
		runtime.Gosched() // EAGAIN: a rename raced with a ".."
	}
}

func (d *Dir) at(p string, flags int) (int, error) { return openat2(d.fd, rel(p), flags, 0, d.resolve) }

// parent opens the parent directory of p and returns p's last component. For the root it returns EBUSY, as for "/".
func (d *Dir) parent(p string) (fd int, base string, err error) {
	dir, base := path.Split(rel(p))
	if base == "." {
		return -1, "", unix.EBUSY
	}
	fd, err = d.at(dir, unix.O_PATH|unix.O_DIRECTORY)
	return fd, base, err
}

// inParent calls fn with p's opened parent directory and last component.
func (d *Dir) inParent(op, p string, fn func(fd int, base string) error) error {
	fd, base, err := d.parent(p)
	if err != nil {
		return d.fail(op, p, err)
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	return d.fail(op, p, fn(fd, base))
}

// pin opens p itself with O_PATH; it does not follow a link.
func (d *Dir) pin(p string) (int, error) {
	if rel(p) == "." {
		return d.at(".", unix.O_PATH|unix.O_DIRECTORY)
	}
	fd, base, err := d.parent(p)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	return openat2(fd, base, unix.O_PATH|unix.O_NOFOLLOW, 0, oneName)
}

// oneName is the resolve flags for a single component. Every such call has O_NOFOLLOW.
const oneName = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS

// withPin calls fn with a descriptor of p itself.
func (d *Dir) withPin(op, p string, fn func(fd int) error) error {
	fd, err := d.pin(p)
	if err != nil {
		return d.fail(op, p, err)
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	return d.fail(op, p, fn(fd))
}

// OpenDir opens a directory beneath the root as a new root; links are followed within the root.
func (d *Dir) OpenDir(p string) (*Dir, error) {
	fd, err := d.at(p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, d.fail("open", p, err)
	}
	return &Dir{fd: fd, name: filepath.Join(d.name, rel(p)), resolve: d.resolve}, nil
}

// OpenPath opens a file of any type with O_PATH; links are followed within the root. It is for bind mounts of
// /proc/self/fd/N, and to keep a reference to the file.
func (d *Dir) OpenPath(p string) (*os.File, error) {
	return d.file(p)(d.at(p, unix.O_PATH))
}

// Names lists a directory, links followed within the root, in the directory's order. More than limit names are an
// error; 0: no limit.
func (d *Dir) Names(p string, limit int) ([]string, error) {
	fd, err := d.at(p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, d.fail("list", p, err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.name, rel(p))) // a descriptor
	defer func() { _ = f.Close() }()                            // read only
	var out []string
	for names, err := range batches(f) {
		if err != nil {
			return nil, d.fail("list", p, err)
		}
		if out = append(out, names...); limit > 0 && len(out) > limit {
			return nil, d.fail("list", p, fmt.Errorf("more than %d entries", limit))
		}
	}
	return out, nil
}
