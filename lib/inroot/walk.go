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

// MaxDepth is the maximum depth of Walk, which holds a descriptor for each level. Deeper paths are hardly usable
// (PATH_MAX is 4096).
const MaxDepth = 512

var (
	// ErrTooDeep is returned by a Walk that skipped directories deeper than MaxDepth.
	ErrTooDeep = fmt.Errorf("more than %d levels of directories", MaxDepth)
	// ErrChanged is returned by an Entry's methods when another file has its name now.
	ErrChanged = errors.New("was replaced meanwhile")
)

// WalkOptions are options of Walk.
type WalkOptions struct {
	CrossMounts bool // enter other mounts, too
	After       bool // visit a directory after its content
}

// Entry is one file of a Walk. It is valid until the callback returns.
type Entry struct {
	Path string // within the root of the walk
	Info Info

	dirfd   int
	base    string // empty: dirfd itself
	resolve uint64
}

// Walk calls fn for p and for everything below it, in no particular order within a directory. It follows no link and
// skips other mounts and their mount points unless CrossMounts is set. Files that are deleted meanwhile are skipped. fn
// may return fs.SkipDir for a directory (unless After is set) or fs.SkipAll. Directories deeper than MaxDepth are
// skipped, and Walk then returns ErrTooDeep.
func (d *Dir) Walk(p string, walkOptions WalkOptions, fn func(e *Entry) error) error {
	fd, err := d.pin(p)
	if err != nil {
		return d.fail("walk", p, err)
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	i, err := statAt(fd, "")
	if err != nil {
		return d.fail("walk", p, err)
	}
	w := walk{options: walkOptions, fn: fn, resolve: oneName}
	if !walkOptions.CrossMounts {
		w.resolve |= unix.RESOLVE_NO_XDEV
	}
	err = w.visit(&Entry{
		Path:    rel(p),
		Info:    i,
		dirfd:   fd,
		resolve: w.resolve,
	}, 0)
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

func (w *walk) visit(entry *Entry, depth int) error {
	if !entry.Info.IsDir() {
		return w.fn(entry)
	}
	if !w.options.After {
		if err := w.fn(entry); errors.Is(err, fs.SkipDir) {
			return nil
		} else if err != nil {
			return err
		}
	}
	var err error
	if depth < MaxDepth {
		err = w.enter(entry, depth)
	} else {
		w.left = entry.Path
	}
	if err != nil || !w.options.After {
		return err
	}
	return w.fn(entry)
}

func (w *walk) enter(entry *Entry, depth int) error {
	name := entry.base
	if name == "" {
		name = "."
	}
	fd, err := openat2(entry.dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, entry.resolve)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), entry.Path) // a descriptor
	defer func() { _ = f.Close() }()         // read only
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
			err = w.visit(&Entry{
				Path:    path.Join(entry.Path, n),
				Info:    i,
				dirfd:   fd,
				base:    n,
				resolve: w.resolve,
			}, depth+1)
			if err != nil && !errors.Is(err, fs.SkipDir) {
				return err
			}
		}
	}
	return nil
}

// gone reports whether an error means that a directory was deleted, replaced or mounted over.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.EXDEV)
}

// batches reads a directory's names in batches.
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

// pin opens the entry and checks that it is still the same file.
func (e *Entry) pin() (int, error) {
	name := e.base
	if name == "" {
		name = "."
		if !e.Info.IsDir() { // the start of the walk, which is pinned
			fd, err := unix.FcntlInt(uintptr(e.dirfd), unix.F_DUPFD_CLOEXEC, 0) // a descriptor
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

// Lchown changes the entry's owner; -1 does not change an id. It returns ErrChanged if another file has the name now.
func (e *Entry) Lchown(uid, gid int) error {
	return e.do("chown", func(fd int) error { return chownFD(fd, uid, gid) })
}

// Chmod sets the entry's permission bits. A symbolic link is refused with ELOOP; ErrChanged as with Lchown.
func (e *Entry) Chmod(mode uint32) error {
	return e.do("chmod", func(fd int) error { return chmodFD(fd, mode) })
}
