// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Lchown changes the owner of p itself; -1 does not change an id.
func (d *Dir) Lchown(p string, uid, gid int) error {
	return d.withPin("chown", p, func(fd int) error { return chownFD(fd, uid, gid) })
}

func chownFD(fd, uid, gid int) error { return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH) }

// Chmod sets the permission bits of p, set-user-id, set-group-id and sticky among them. A symbolic link is refused with
// ELOOP.
func (d *Dir) Chmod(p string, mode uint32) error {
	return d.withPin("chmod", p, func(fd int) error { return chmodFD(fd, mode) })
}

func chmodFD(fd int, mode uint32) error {
	i, err := statAt(fd, "")
	if err != nil {
		return err
	}
	if i.IsSymlink() {
		return unix.ELOOP
	}
	return unix.Chmod(procPath(fd), mode&0o7777)
}

// Utimes sets the times of p itself; a zero time does not change one.
func (d *Dir) Utimes(p string, accessed, modified time.Time) error {
	ts := []unix.Timespec{timespec(accessed), timespec(modified)}
	if rel(p) == "." {
		return d.fail("utimes", p, unix.UtimesNanoAt(unix.AT_FDCWD, procPath(d.fd), ts, 0))
	}
	return d.inParent("utimes", p, func(fd int, base string) error {
		return unix.UtimesNanoAt(fd, base, ts, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func timespec(t time.Time) unix.Timespec {
	if t.IsZero() {
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

// Listxattr lists the extended attributes of p itself; none if the file system does not support them.
func (d *Dir) Listxattr(p string) ([]string, error) {
	var out []string
	err := d.withPin("listxattr", p, func(fd int) error {
		b, err := grow(func(b []byte) (int, error) { return unix.Listxattr(procPath(fd), b) })
		if errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		if s := strings.TrimSuffix(string(b), "\x00"); s != "" {
			out = strings.Split(s, "\x00")
		}
		return err
	})
	return out, err
}

// Getxattr returns one extended attribute of p itself.
func (d *Dir) Getxattr(p, name string) ([]byte, error) {
	var out []byte
	err := d.withPin("getxattr", p, func(fd int) (err error) {
		out, err = grow(func(b []byte) (int, error) { return unix.Getxattr(procPath(fd), name, b) })
		return err
	})
	return out, err
}

// grow calls get with growing buffers until the result fits; the kernel's limit is 64 KiB.
func grow(get func([]byte) (int, error)) ([]byte, error) {
	for size := 256; ; size *= 4 {
		b := make([]byte, size)
		n, err := get(b)
		if errors.Is(err, unix.ERANGE) && size < 1<<18 {
			continue
		}
		if err != nil {
			return nil, err
		}
		return b[:n], nil
	}
}

// Setxattr sets an extended attribute of p itself.
func (d *Dir) Setxattr(p, name string, value []byte) error {
	return d.withPin("setxattr", p, func(fd int) error { return unix.Setxattr(procPath(fd), name, value, 0) })
}

// Removexattr removes an extended attribute of p itself.
func (d *Dir) Removexattr(p, name string) error {
	return d.withPin("removexattr", p, func(fd int) error { return unix.Removexattr(procPath(fd), name) })
}
