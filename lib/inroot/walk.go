// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxDepth is how many levels of directories Walk goes down: it holds a descriptor for each. A path of more levels can hardly be
// used by name (PATH_MAX is 4096).
const MaxDepth = 512

var (
	// ErrTooDeep is the answer of a Walk that left out what lies below MaxDepth levels.
	ErrTooDeep = fmt.Errorf("more than %d levels of directories", MaxDepth)
	// ErrChanged is the answer of an Entry's methods when its name became another file since it was looked at.
	ErrChanged = errors.New("was replaced meanwhile")
)

// WalkOptions change how Walk goes.
type WalkOptions struct {
	CrossMounts bool // also enter what is mounted inside
	After       bool // a directory comes after what is in it
}

// Entry is one file that Walk came across. It is good until the function that got it returns.
type Entry struct {
	Path string // within the root of the walk
	Info Info

	dirfd   int
	base    string // empty: dirfd itself
	resolve uint64
}

// Walk calls fn for p itself and for everything below it, in no particular order within a directory. It follows no link and enters
// no other mount (it leaves mount points out) unless asked. What vanishes meanwhile is left out. fn may return fs.SkipDir for a
// directory (when it comes first) or fs.SkipAll. What lies deeper than MaxDepth is left
// out, and the answer then is ErrTooDeep; who measures takes that as more than any limit.
func (d *Dir) Walk(p string, o WalkOptions, fn func(e *Entry) error) error {
	fd, err := d.pin(p)
	if err != nil {
		return d.fail("walk", p, err)
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	i, err := statAt(fd, "")
	if err != nil {
		return d.fail("walk", p, err)
	}
	w := walk{options: o, fn: fn, resolve: oneName}
	if !o.CrossMounts {
		w.resolve |= unix.RESOLVE_NO_XDEV
	}
	err = w.visit(&Entry{Path: rel(p), Info: i, dirfd: fd, resolve: w.resolve}, 0)
	if errors.Is(err, fs.SkipAll) || errors.Is(err, fs.SkipDir) {
		return nil
	}
	if err == nil && w.left != "" {
		err = fmt.Errorf("%.200s: %w", w.left, ErrTooDeep)
	}
	return d.fail("walk", p, err)
}

type walk struct {
	options WalkOptions
	fn      func(e *Entry) error
	resolve uint64
	left    string // a directory that was too deep
}

func (w *walk) visit(e *Entry, depth int) error {
	if !e.Info.IsDir() {
		return w.fn(e)
	}
	if !w.options.After {
		if err := w.fn(e); errors.Is(err, fs.SkipDir) {
			return nil
		} else if err != nil {
			return err
		}
	}
	var err error
	if depth < MaxDepth {
		err = w.enter(e, depth)
	} else {
		w.left = e.Path
	}
	if err != nil || !w.options.After {
		return err
	}
	return w.fn(e)
}

func (w *walk) enter(e *Entry, depth int) error {
	name := e.base
	if name == "" {
		name = "."
	}
	fd, err := openat2(e.dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, e.resolve)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), e.Path) //nolint:gosec // a descriptor
	defer func() { _ = f.Close() }()     // read only
	for names, err := range batches(f) {
		if err != nil {
			return err
		}
		for _, n := range names {
			i, err := statAt(fd, n)
			if errors.Is(err, unix.ENOENT) || err == nil && i.MountRoot && !w.options.CrossMounts {
				continue
			}
			if err != nil {
				return err
			}
			err = w.visit(&Entry{Path: path.Join(e.Path, n), Info: i, dirfd: fd, base: n, resolve: w.resolve}, depth+1)
			if err != nil && !errors.Is(err, fs.SkipDir) {
				return err
			}
		}
	}
	return nil
}

// gone reports that a directory is no longer there, or no longer one, or now a mount.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV)
}

// batches reads a directory's names piecemeal.
func batches(f *os.File) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for {
			names, err := f.Readdirnames(256)
			for _, n := range names {
				if n == "" || strings.Contains(n, "/") {
					yield(nil, fmt.Errorf("the file system lists an entry %q", n))
					return
				}
			}
			if errors.Is(err, unix.ENOENT) || errors.Is(err, io.EOF) { // ENOENT: the directory was removed
				err = nil
			}
			if len(names) == 0 && err == nil {
				return
			}
			if !yield(names, err) || err != nil {
				return
			}
		}
	}
}

// pin opens the entry and makes sure that it is what was looked at.
func (e *Entry) pin() (int, error) {
	name := e.base
	if name == "" {
		name = "."
		if !e.Info.IsDir() { // the start of the walk, which is pinned
			fd, err := unix.FcntlInt(uintptr(e.dirfd), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // a descriptor
			return fd, err
		}
	}
	fd, err := openat2(e.dirfd, name, unix.O_PATH|unix.O_NOFOLLOW, 0, e.resolve)
	if gone(err) {
		return -1, ErrChanged
	}
	if err != nil {
		return -1, err
	}
	i, err := statAt(fd, "")
	if err == nil && (!i.SameFile(&e.Info) || i.Type() != e.Info.Type()) {
		err = ErrChanged
	}
	if err != nil {
		_ = unix.Close(fd) // O_PATH
		return -1, err
	}
	e.Info = i
	return fd, nil
}

func (e *Entry) do(op string, fn func(fd int) error) error {
	fd, err := e.pin()
	if err == nil {
		err = fn(fd)
		_ = unix.Close(fd) // O_PATH
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: e.Path, Err: err}
	}
	return nil
}

// Lchown changes the entry's owner; -1 leaves one as it is. ErrChanged when its name is another file by now.
func (e *Entry) Lchown(uid, gid int) error {
	return e.do("chown", func(fd int) error { return chownFD(fd, uid, gid) })
}

// Chmod sets the entry's permission bits. A symbolic link is refused with ELOOP; ErrChanged as with Lchown.
func (e *Entry) Chmod(mode uint32) error {
	return e.do("chmod", func(fd int) error { return chmodFD(fd, mode) })
}
