// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Info is the result of statx(2) for one file; links are not followed.
type Info struct {
	Mode      uint32 // type and permission bits, as in stat(2)
	UID, GID  uint32
	Size      int64
	Blocks    int64 // of 512 bytes
	Dev, Ino  uint64
	Nlink     uint32
	Rdev      uint64
	Accessed  time.Time
	Modified  time.Time
	MountRoot bool // it is a mount point
}

// Type returns the file type: unix.S_IFREG and so on.
func (i *Info) Type() uint32 { return i.Mode & unix.S_IFMT }

// IsDir reports whether it is a directory.
func (i *Info) IsDir() bool { return i.Type() == unix.S_IFDIR }

// IsRegular reports whether it is a regular file.
func (i *Info) IsRegular() bool { return i.Type() == unix.S_IFREG }

// IsSymlink reports whether it is a symbolic link.
func (i *Info) IsSymlink() bool { return i.Type() == unix.S_IFLNK }

// Perm returns the permission bits, including set-user-id, set-group-id and sticky.
func (i *Info) Perm() uint32 { return i.Mode & 0o7777 }

// SameFile reports whether both are one inode.
func (i *Info) SameFile(o *Info) bool { return i.Dev == o.Dev && i.Ino == o.Ino }

// statAt returns the Info of base in the directory dirfd, or of dirfd itself when base is empty.
func statAt(dirfd int, base string) (Info, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if base == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	for {
		err := unix.Statx(dirfd, base, flags, unix.STATX_BASIC_STATS, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Info{}, err
		}
		break
	}
	return Info{
		Mode:      uint32(st.Mode),
		UID:       st.Uid,
		GID:       st.Gid,
		Size:      int64(st.Size),
		Blocks:    int64(st.Blocks), // as stat(2) has them
		Dev:       unix.Mkdev(st.Dev_major, st.Dev_minor),
		Ino:       st.Ino,
		Nlink:     st.Nlink,
		Rdev:      unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		Accessed:  time.Unix(st.Atime.Sec, int64(st.Atime.Nsec)),
		Modified:  time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)),
		MountRoot: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}, nil
}

// Lstat returns the Info of p itself.
func (d *Dir) Lstat(p string) (Info, error) {
	var out Info
	if rel(p) == "." {
		out, err := statAt(d.fd, "")
		return out, d.fail("stat", p, err)
	}
	err := d.inParent("stat", p, func(fd int, base string) (err error) {
		out, err = statAt(fd, base)
		return err
	})
	return out, err
}

// Stat returns the Info of p; links are followed within the root.
func (d *Dir) Stat(p string) (Info, error) {
	fd, err := d.at(p, unix.O_PATH)
	if err != nil {
		return Info{}, d.fail("stat", p, err)
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	out, err := statAt(fd, "")
	return out, d.fail("stat", p, err)
}

// StatFile returns the Info of an open file.
func StatFile(f *os.File) (Info, error) {
	out, err := statAt(int(f.Fd()), "") // a descriptor
	if err != nil {
		return out, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return out, nil
}

// Readlink returns the target of the symbolic link p.
func (d *Dir) Readlink(p string) (string, error) {
	var out string
	err := d.withPin("readlink", p, func(fd int) error {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", buf)
		if err != nil {
			return err
		}
		out = string(buf[:n])
		return nil
	})
	return out, err
}
