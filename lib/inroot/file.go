// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is returned by OpenFile for a directory, FIFO, socket or device.
var ErrNotRegular = errors.New("not a regular file")

// OpenFile opens a regular file; links are followed within the root. With os.O_CREATE it makes a missing file, but not
// through a dangling link. flag is as in os.OpenFile. A file of another type is not opened: ErrNotRegular.
func (d *Dir) OpenFile(p string, flag int, perm fs.FileMode) (*os.File, error) {
	if flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0 {
		return d.file(p)(d.create(p, flag, perm))
	}
	for range maxTries {
		fd, err := d.openRegular(p, flag&^os.O_CREATE)
		if flag&os.O_CREATE == 0 || !errors.Is(err, unix.ENOENT) {
			return d.file(p)(fd, err)
		}
		fd, err = d.create(p, flag, perm)
		if !errors.Is(err, unix.EEXIST) {
			return d.file(p)(fd, err)
		}
		if i, lerr := d.Lstat(p); lerr == nil && i.IsSymlink() {
			return nil, d.fail("open", p, err)
		} // else another process has made it
	}
	return nil, d.fail("open", p, unix.EAGAIN)
}

// file wraps a descriptor of p.
func (d *Dir) file(p string) func(fd int, err error) (*os.File, error) {
	return func(fd int, err error) (*os.File, error) {
		if err != nil {
			return nil, d.fail("open", p, err)
		}
		return os.NewFile(uintptr(fd), filepath.Join(d.name, rel(p))), nil // a descriptor
	}
}

// create makes a new file; it fails if the file exists.
func (d *Dir) create(p string, flag int, perm fs.FileMode) (int, error) {
	dir, base, err := d.parent(p)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(dir) }() // O_PATH
	return openat2(dir, base, flag|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, modeBits(perm), oneName)
}

// openRegular checks the file type before it opens the file.
func (d *Dir) openRegular(p string, flag int) (int, error) {
	at, err := d.at(p, unix.O_PATH|flag&unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(at) }() // O_PATH
	i, err := statAt(at, "")
	if err != nil {
		return -1, err
	}
	if !i.IsRegular() {
		return -1, ErrNotRegular
	}
	// O_NONBLOCK: without it a file lease (fcntl F_SETLEASE) of another process would block the open.
	return unix.Open(procPath(at), flag&^unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// modeBits is perm as the kernel has it.
func modeBits(perm fs.FileMode) uint32 {
	m := uint32(perm.Perm())
	if perm&fs.ModeSetuid != 0 {
		m |= unix.S_ISUID
	}
	if perm&fs.ModeSetgid != 0 {
		m |= unix.S_ISGID
	}
	if perm&fs.ModeSticky != 0 {
		m |= unix.S_ISVTX
	}
	return m
}

// ReadFile reads a regular file; links are followed within the root. A file of more than limit bytes is an error.
func (d *Dir) ReadFile(p string, limit int64) ([]byte, error) {
	f, err := d.OpenFile(p, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("larger than %d bytes", limit)
	}
	if err != nil {
		return nil, d.fail("read", p, err)
	}
	return b, nil
}

// WriteFile writes a regular file. A missing one is made with perm, regardless of the umask.
func (d *Dir) WriteFile(p string, data []byte, perm fs.FileMode) error {
	f, err := d.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	return errors.Join(err, f.Close())
}
