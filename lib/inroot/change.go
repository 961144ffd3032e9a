// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// Mkdir makes a directory. The umask applies, as with os.Mkdir.
func (d *Dir) Mkdir(p string, perm fs.FileMode) error {
	return d.inParent("mkdir", p, func(fd int, base string) error { return unix.Mkdirat(fd, base, modeBits(perm)) })
}

// MkdirAll makes a directory and its missing parents; links are followed within the root. Existing directories do not
// change.
func (d *Dir) MkdirAll(p string, perm fs.FileMode) error {
	_, err := d.mkdirAll(p, perm, false)
	return err
}

// MkdirAllExact is MkdirAll, but new directories get exactly perm, regardless of the umask. made lists them, uppermost
// first.
func (d *Dir) MkdirAllExact(p string, perm fs.FileMode) (made []string, err error) {
	return d.mkdirAll(p, perm, true)
}

func (d *Dir) mkdirAll(p string, perm fs.FileMode, exact bool) (made []string, err error) {
	p = rel(p)
	missing := []string{}
	for at := p; ; at = path.Dir(at) {
		fd, err := d.at(at, unix.O_PATH|unix.O_DIRECTORY)
		if err == nil {
			_ = unix.Close(fd) // O_PATH
			break
		}
		if !errors.Is(err, unix.ENOENT) || at == "." {
			return nil, d.fail("mkdir", at, err)
		}
		missing = append(missing, at)
	}
	for _, at := range slices.Backward(missing) {
		err := d.inParent("mkdir", at, func(fd int, base string) error {
			err := unix.Mkdirat(fd, base, modeBits(perm))
			if errors.Is(err, unix.EEXIST) {
				return nil // another process has made it; the next step checks that it is a directory
			}
			if err == nil {
				made = append(made, at)
			}
			if err != nil || !exact {
				return err
			}
			return chmodMade(fd, base, modeBits(perm))
		})
		if err != nil {
			return made, err
		}
	}
	fd, err := d.at(p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return made, d.fail("mkdir", p, err)
	}
	return made, unix.Close(fd)
}

// chmodMade sets the mode of a directory that was just made, unless another file has that name now.
func chmodMade(dirfd int, base string, mode uint32) error {
	fd, err := openat2(dirfd, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0, oneName)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()                                      // O_PATH
	if i, err := statAt(fd, ""); err != nil || i.UID != uint32(os.Geteuid()) { // an id
		return errors.Join(err, ErrChanged)
	}
	return chmodFD(fd, mode)
}

// Remove removes a file, a link or an empty directory.
func (d *Dir) Remove(p string) error {
	return d.inParent("remove", p, removeAt)
}

func removeAt(fd int, base string) error {
	err := unix.Unlinkat(fd, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return err
	}
	if derr := unix.Unlinkat(fd, base, unix.AT_REMOVEDIR); !errors.Is(derr, unix.ENOTDIR) {
		return derr
	}
	return err
}

// Rename renames a file, link or directory within the root. It replaces an existing file of the new name.
func (d *Dir) Rename(from, to string) error {
	return d.inParent("rename", from, func(ffd int, fbase string) error {
		return d.inParent("rename", to, func(tfd int, tbase string) error {
			return unix.Renameat(ffd, fbase, tfd, tbase)
		})
	})
}

// Symlink makes a symbolic link; target is not checked.
func (d *Dir) Symlink(target, p string) error {
	return d.inParent("symlink", p, func(fd int, base string) error { return unix.Symlinkat(target, fd, base) })
}

// Link makes a hard link to the file from, which may be a symbolic link, within the root.
func (d *Dir) Link(from, to string) error {
	return d.inParent("link", from, func(ffd int, fbase string) error {
		return d.inParent("link", to, func(tfd int, tbase string) error {
			return unix.Linkat(ffd, fbase, tfd, tbase, 0)
		})
	})
}

// Mknod makes a device, FIFO, socket or file: mode is type and permission bits as in mknod(2). The umask applies.
func (d *Dir) Mknod(p string, mode uint32, dev uint64) error {
	return d.inParent("mknod", p, func(fd int, base string) error {
		return unix.Mknodat(fd, base, mode, int(dev)) // as the kernel has it
	})
}
